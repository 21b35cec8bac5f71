"""What a loop sees of the harness: the same calls whether it runs bare, counted, or watched by the hook.

A loop is written as anyone writes one. It says ``run.watch(...)`` where a user would, ``update(...)`` around
the part of an update that steps, and ``check(...)`` for what only it can know. Run bare, all of that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from scalescope.wire import Record
from torch import nn
from torch.amp import GradScaler

from tests.loops.bits import Stateful, bits
from tests.loops.counting import Counter
from tests.loops.restoring import Traces, in_torch, left_over, on_objects
from tests.small_training import Watched, watching

# Often enough that every loop has several periodic samples, rarely enough that most updates have none.
EVERY = 4

Models = nn.Module | Sequence[nn.Module]
Optimizer = torch.optim.Optimizer


class Watch:
    """One watched training as its loop sees it: off, it does nothing."""

    def complete(self, optimizer: Optimizer, *, micro_batches: int | None = 1) -> None:
        """The gradients of ``optimizer`` are complete: scaled, not unscaled, not clipped."""

    def idle(self, optimizer: Optimizer) -> None:
        """``optimizer`` was unscaled and is never stepped in this update."""

    def done(self, loss: torch.Tensor | None = None, *, was_set: bool = False) -> None:
        """The update is over, and ``loss`` is logged for it. ``was_set``: ``update`` was given the scale."""

    def scale_set(self, before: float, after: float) -> None:
        """The trainer set the scale between two updates."""

    def replaced(self, scaler: GradScaler) -> None:
        """From here on the loop uses another scaler, which ``watch`` was not told of."""

    def expect(
        self,
        *,
        formats: Mapping[str, str] | None = None,
        unnamed: str = "",
        untold: Sequence[str] = (),
        replica: bool = False,
    ) -> None:
        """What the loop knows by itself: see :class:`~tests.loops.counting.Count`."""

    def fact(self, **facts: object) -> None:
        """What is to be told of the window under way, by the names of its facts."""

    def close(self) -> None:
        """As ``scope.close()``."""

    @contextmanager
    def update(
        self, *optimizers: Optimizer, loss: torch.Tensor | None = None, micro_batches: int | None = 1
    ) -> Iterator[None]:
        """The part of an update that unscales, clips and steps ``optimizers``."""
        for optimizer in optimizers:
            self.complete(optimizer, micro_batches=micro_batches)
        yield
        self.done(loss)


class CountedWatch(Watch):
    """Counts the truth."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter

    def complete(self, optimizer: Optimizer, *, micro_batches: int | None = 1) -> None:
        self.counter.complete(optimizer, micro_batches)

    def idle(self, optimizer: Optimizer) -> None:
        self.counter.idle(optimizer)

    def done(self, loss: torch.Tensor | None = None, *, was_set: bool = False) -> None:
        self.counter.done(loss, was_set=was_set)

    def scale_set(self, before: float, after: float) -> None:
        self.counter.scale_set(before, after)

    def replaced(self, scaler: GradScaler) -> None:
        self.counter.replaced(scaler)

    def expect(
        self,
        *,
        formats: Mapping[str, str] | None = None,
        unnamed: str = "",
        untold: Sequence[str] = (),
        replica: bool = False,
    ) -> None:
        self.counter.count.formats.update(formats or {})
        self.counter.count.unnamed = unnamed
        self.counter.count.replica = replica
        self.counter.count.untold += untold

    def fact(self, **facts: object) -> None:
        for name, value in facts.items():
            self.counter.fact(name, value)


class HookedWatch(Watch):
    """Watched by the hook."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._closed = False
        self.records: list[Record] = []

    def done(self, loss: torch.Tensor | None = None, *, was_set: bool = False) -> None:
        if loss is not None:
            self._watched.log(loss=loss)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.records = self._watched.end()


class Run:
    """One run of a loop. This class itself is the bare one."""

    def __init__(self) -> None:
        self._kept: list[Stateful] = []
        self.losses: list[torch.Tensor] = []

    def watch(
        self,
        models: Models,
        optimizers: Optimizer | Sequence[Optimizer],
        scaler: GradScaler | None = None,
        *,
        author: Mapping[str, nn.Module] | None = None,
    ) -> Watch:
        """As ``scalescope.watch``. ``author``: the models as they were written, by the prefix of their names."""
        found = [models] if isinstance(models, nn.Module) else list(models)
        stepped = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
        self.keep(*found, *stepped, *([] if scaler is None else [scaler]))
        return self._watch(found, stepped, scaler, author or {"": found[0]})

    def keep(self, *things: Stateful) -> None:
        """What else must come out bit for bit the same."""
        self._kept += things

    def check(self, what: str, holds: Callable[[], bool]) -> None:
        """A fact that only the loop can look at; asked where the hook is there."""

    def state(self) -> dict[str, bytes]:
        """All that the training has come to."""
        return bits([[thing.state_dict() for thing in self._kept], self.losses, torch.get_rng_state()])

    def _watch(
        self,
        models: list[nn.Module],
        optimizers: list[Optimizer],
        scaler: GradScaler | None,
        author: Mapping[str, nn.Module],
    ) -> Watch:
        return Watch()


class CountedRun(Run):
    """Counts the truth of every watched training, and no hook is there."""

    def __init__(self) -> None:
        super().__init__()
        self.watches: list[CountedWatch] = []

    def _watch(
        self,
        models: list[nn.Module],
        optimizers: list[Optimizer],
        scaler: GradScaler | None,
        author: Mapping[str, nn.Module],
    ) -> Watch:
        used = scaler if scaler is not None and scaler.is_enabled() else None
        self.watches.append(CountedWatch(Counter(author, optimizers, used)))
        return self.watches[-1]


class HookedRun(Run):
    """With the hook, and everything looked at before and after."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__()
        self._stack = stack
        # How to look, and what was there before the hook came.
        self._looked_at: list[tuple[Callable[[], Traces], Traces]] = [(in_torch, in_torch())]
        self.watches: list[HookedWatch] = []
        self.checks: dict[str, bool] = {}

    def check(self, what: str, holds: Callable[[], bool]) -> None:
        self.checks[what] = holds()

    def close(self) -> list[str]:
        """Close every watch that is open; what of the hook is left."""
        for watch in self.watches:
            watch.close()
        return [name for look, before in self._looked_at for name in left_over(before, look())]

    def _watch(
        self,
        models: list[nn.Module],
        optimizers: list[Optimizer],
        scaler: GradScaler | None,
        author: Mapping[str, nn.Module],
    ) -> Watch:
        look = partial(on_objects, models, optimizers, [] if scaler is None else [scaler])
        self._looked_at.append((look, look()))
        used = scaler if scaler is not None and scaler.is_enabled() else None
        self.watches.append(HookedWatch(self._stack.enter_context(watching(models, optimizers, used, every=EVERY))))
        return self.watches[-1]
