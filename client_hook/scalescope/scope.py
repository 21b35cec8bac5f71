"""``watch``: the one call that joins taps, recorder and link, and the :class:`Scope` it returns."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch
from torch import nn
from torch.amp import GradScaler

from scalescope.errors import SettingError
from scalescope.link import Link
from scalescope.recorder import Recorder
from scalescope.settings import Settings, read_settings
from scalescope.taps import facts
from scalescope.taps.edge import Cost, Edge
from scalescope.taps.process import ProcessTap, crash_text
from scalescope.taps.training import Training, TrainingTap, training_of
from scalescope.wire import PROTOCOL, ByeReason, Hello

# Lower case without look-alikes: an id is read aloud and typed. 12 of 32 signs: 60 bits.
_SIGNS = "23456789abcdefghijkmnpqrstuvwxyz"
_ID_LENGTH = 12
# Bounds of the wire.
_MAX_LISTED = 64
_NAME = f"a text of 1 to {facts.MAX_NAME} characters"
_NO_COST = Cost(None, None, 0)


@dataclass(frozen=True, slots=True)
class Stats:
    """Where a scope stands.

    Attributes:
        sent: records sent to the server, repetitions included.
        pending: records that the server has not acknowledged yet.
        dropped: records given up because memory and disk were full.
        errors: failures inside the taps; training went on each time.
        refused: logged values that were no number.
        unsampled, sampled: what the hook took of the training thread at updates whose gradients were not, or
            were, measured.
    """

    sent: int = 0
    pending: int = 0
    dropped: int = 0
    errors: int = 0
    refused: int = 0
    unsampled: Cost = _NO_COST
    sampled: Cost = _NO_COST


class Scope:
    """What ``watch`` returns. This class itself is the scope that is off: it watches and sends nothing."""

    run_id: str = ""
    url: str = ""

    @property
    def stats(self) -> Stats:
        return Stats()

    def log(self, **values: object) -> None:
        """Record numbers, or tensors of one element, of the update whose backward ran last.

        Before the first backward they belong to the first update. Tensors on a device are read later, without
        a wait. ``tokens`` adds up over an update; of any other name the last value counts. What is not a
        number is left out and counted, never raised.
        """

    def close(self) -> None:
        """Put every hook and class back, and deliver what is left: until acknowledged, at most 10 s."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LiveScope(Scope):
    """A scope that watches one training."""

    def __init__(self, training: Training, hello: Hello, settings: Settings) -> None:
        self.run_id = hello.run
        self.url = f"{settings.url}/runs/{hello.run}"
        self._pid = os.getpid()
        self._edge = Edge()
        recorder = Recorder()
        self._tap = self._edge.call(TrainingTap, training, recorder, self._edge, every=hello.every, clock=time.time)
        self._link = Link(hello, settings, recorder)
        self._process = ProcessTap(self._end)
        recorder.on_news = self._link.wake
        self._link.start()

    @property
    def stats(self) -> Stats:
        link = self._link.stats()
        return Stats(
            sent=link.sent,
            pending=link.pending,
            dropped=link.dropped,
            errors=self._edge.errors,
            refused=self._tap.refused if self._tap else 0,
            unsampled=self._edge.cost(sampled=False),
            sampled=self._edge.cost(sampled=True),
        )

    def log(self, **values: object) -> None:
        if self._tap is not None:
            self._tap.log(values)

    def close(self) -> None:
        self._end("finished", "")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # sys.exit() is an ordinary end, as it is without the ``with``.
        if error is None or isinstance(error, SystemExit):
            self.close()
        else:
            self._end("crashed", crash_text(error))

    def _end(self, reason: ByeReason, detail: str) -> None:
        if self._tap is not None:
            self._tap.remove()
        self._process.remove()
        # A forked child has our memory, not our thread: the parent says goodbye.
        if os.getpid() == self._pid:
            self._link.close(reason, detail)


def watch(
    model: nn.Module | Sequence[nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    scaler: GradScaler | None = None,
    *,
    scheduler: object = None,
    project: str = "default",
    name: str | None = None,
    tags: Sequence[str] = (),
    config: object = None,
    run: str | None = None,
    url: str | None = None,
    token: str | None = None,
    every: int | None = None,
    modules: bool = True,  # noqa: ARG001 - promised: see Args
    allow_requests: bool = False,  # noqa: ARG001 - promised: see Args
) -> Scope:
    """Watch a training from here on.

    An update closes at ``scaler.update()``; without an enabled scaler when the optimizers have stepped. Every
    update's facts are recorded, and the exponent histograms of all gradients every ``every`` updates and at
    every skipped one. Loss and weights stay bit for bit what they would be without.

    Args:
        model: the model, or several; their parameters are named as they name them.
        optimizer: the optimizer, or several.
        scaler: the loss scaler, if one is used; a disabled one counts as none.
        scheduler: the learning-rate scheduler; its class is recorded.
        project, name, tags, config: how the run is found again. ``config`` is a mapping, dataclass or namespace.
        run: id of a run to go on with, as a new segment of it.
        url, token, every: win over ``SCALESCOPE_URL``, ``SCALESCOPE_TOKEN`` and ``SCALESCOPE_EVERY``.
        modules: reserved for taps on forward and backward of modules; changes nothing in this version.
        allow_requests: reserved for samples asked for by the server; changes nothing in this version.

    Returns:
        The scope; one that does nothing when ``SCALESCOPE_OFF=1``.

    Raises:
        SettingError: (a ValueError) for an argument that cannot be used. Nothing is raised later.
    """
    settings = read_settings(os.environ, url=url, token=token, run=run, every=every)
    training = training_of(model, optimizer, scaler)
    names = _names(project, name, tags)
    if settings.off:
        return Scope()
    hello = _hello(training, settings, names, facts.config_text(config), scheduler)
    return LiveScope(training, hello, settings)


@dataclass(frozen=True, slots=True)
class Names:
    """How a run is found again."""

    project: str
    name: str | None
    tags: list[str]


def _hello(training: Training, settings: Settings, names: Names, config: str, scheduler: object) -> Hello:
    rank, world_size = facts.world()
    environment = facts.environment()
    if scheduler is not None:
        environment["scheduler"] = type(scheduler).__name__
    return Hello(
        protocol=PROTOCOL,
        run=settings.run or new_id(),
        segment=new_id(),
        rank=rank,
        world_size=world_size,
        started_at=time.time(),
        project=names.project,
        name=names.name,
        tags=names.tags,
        config=config,
        environment=environment,
        scaler=None if training.scaler is None else facts.scaler_settings(training.scaler),
        optimizers=[facts.optimizer_settings(optimizer) for optimizer in training.optimizers[:_MAX_LISTED]],
        every=settings.every,
        resumed=settings.run is not None,
    )


def new_id() -> str:
    """A new random id of a run or a segment, fit for a URL."""
    return "".join(secrets.choice(_SIGNS) for _ in range(_ID_LENGTH))


def _names(project: object, name: object, tags: Sequence[object]) -> Names:
    if not facts.is_name(project):
        raise SettingError("project", expected=_NAME, got=project)
    if not (name is None or facts.is_name(name)):
        raise SettingError("name", expected=f"None or {_NAME}", got=name)
    if isinstance(tags, str) or len(tags) > _MAX_LISTED or not all(map(facts.is_name, tags)):
        raise SettingError("tags", expected=f"at most {_MAX_LISTED} tags, each {_NAME}", got=tags)
    return Names(str(project), None if name is None else str(name), [str(tag) for tag in tags])
