"""The update that is under way: what the taps hear is gathered here and closed into an :class:`Update`.

Which update a logged value belongs to follows the backward passes: after a backward it is the one under way,
before it the one that closed last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from scalescope.readback import Value, read_later
from scalescope.taps.edge import Edge
from scalescope.taps.gradients import measure_gradients, unknown_parameters
from scalescope.taps.logged import Intake
from scalescope.taps.order import BackwardWatch
from scalescope.taps.parameters import Parameters
from scalescope.updates import Measured, OptimizerVerdict, ScaleSet, Update
from scalescope.wire import Layout


class Recording(Protocol):
    """What takes the closed updates: the recorder."""

    def put_layout(self, layout: Layout) -> None: ...
    def put_scale_set(self, change: ScaleSet) -> None: ...
    def put(self, update: Update) -> None: ...
    def finish(self, step: int) -> None: ...


class Loop:
    """Gathers one update after the other. Every method runs in the training thread, behind an edge."""

    def __init__(
        self,
        recording: Recording,
        parameters: Parameters,
        optimizers: Sequence[torch.optim.Optimizer],
        edge: Edge,
        *,
        every: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.optimizers = list(optimizers)
        self.edge = edge
        self.intake = Intake()
        # Whether the update under way is to be sampled because its turn has come.
        self.periodic = True
        self._recording = recording
        self._parameters = parameters
        self._every = every
        self._clock = clock
        self._backward = BackwardWatch(parameters, edge, self.hear_backward)
        self._step = 0
        self._measured: list[Measured] = []
        self._blind = ""
        self._backward_ran = False
        self._open = Update(0, 0.0)
        self._last: Update | None = None
        self._closed_ns: int | None = None
        self._names = _names(self.optimizers)

    def start(self) -> None:
        """Say what is known of the parameters, and listen to their gradients."""
        self._recording.put_layout(self._backward.layout())
        self._backward.arm()

    def name(self, optimizer: torch.optim.Optimizer) -> str:
        """Its class, numbered where several watched optimizers share one."""
        return self._names.get(id(optimizer), type(optimizer).__name__)

    def watches(self, optimizer: torch.optim.Optimizer) -> bool:
        return id(optimizer) in self._names

    def hear_backward(self) -> None:
        """A backward pass of the update under way has begun: nothing is added to the one before."""
        if not self._backward_ran:
            self._backward_ran = True
            self._recording.finish(self._step - 1)

    def measure(self, optimizer: torch.optim.Optimizer, *, factor: float = 1.0) -> None:
        """Measure the gradients of a watched optimizer as they stand, times ``factor``."""
        if not self.watches(optimizer):
            self.cannot_see("the optimizer that overflowed is not watched")
            return
        if unknown_parameters(optimizer, self._parameters):
            self._parameters.extend(self.optimizers)
            self._backward.arm()
        known = {index for part in self._measured for index in part.indexes}
        self._measured += measure_gradients(optimizer, self._parameters, factor=factor, known=known)

    def cannot_see(self, reason: str) -> None:
        """The culprit of this update, should it be skipped, cannot be named."""
        self._blind = reason

    def log(self, given: Mapping[str, object]) -> None:
        values = self.intake.take(given)
        target = self._open if self._backward_ran or self._last is None else self._last
        tokens = values.pop("tokens", None)
        if tokens is not None:
            target.tokens.append(tokens)
        target.values.update(values)

    def set_scale(self, scale: Value | None, next_scale: Value | None) -> None:
        """The trainer set the scale between two updates."""
        self._recording.put_scale_set(ScaleSet(max(self._step - 1, 0), self._clock(), scale, next_scale))

    def close(
        self,
        *,
        verdicts: Sequence[OptimizerVerdict] = (),
        scale: Value | None = None,
        growth_tracker: Value | None = None,
        next_scale: Value | None = None,
        scale_was_set: bool = False,
    ) -> None:
        """The update under way is over: hand it on and begin the next."""
        self.edge.charge(sampled=bool(self._measured))
        self.hear_backward()
        update = self._open
        update.step, update.at, update.periodic = self._step, self._clock(), self.periodic
        update.scale, update.next_scale, update.scale_was_set = scale, next_scale, scale_was_set
        update.verdicts, update.measured, update.blind = verdicts, self._measured, self._blind
        update.micro_batches = self._backward.close_window(self.optimizers)
        self._add_facts(update.values, growth_tracker)
        layout = self._backward.news()
        if layout is not None:
            self._recording.put_layout(layout)
        self._begin_next(update)
        self._recording.put(update)

    def finish(self) -> None:
        """Listen no more; the last update is complete."""
        self._backward.remove()
        self._recording.finish(self._step - 1)

    def _add_facts(self, values: dict[str, Value], growth_tracker: Value | None) -> None:
        now = time.perf_counter_ns()
        if growth_tracker is not None:
            values["growth_tracker"] = growth_tracker
        if self._closed_ns is not None:
            values["step_ms"] = (now - self._closed_ns) / 1e6
        self._closed_ns = now
        rate = self.optimizers[0].param_groups[0].get("lr")
        # Who logs a rate knows better: a schedule may be applied elsewhere.
        if rate is not None and "learning_rate" not in values:
            values["learning_rate"] = read_later(rate) if isinstance(rate, torch.Tensor) else float(rate)

    def _begin_next(self, update: Update) -> None:
        self._last = update
        self._step += 1
        self.periodic = self._step % self._every == 0
        self._open = Update(self._step, 0.0)
        self._measured = []
        self._blind = ""
        self._backward_ran = False


def _names(optimizers: Sequence[torch.optim.Optimizer]) -> dict[int, str]:
    classes = [type(optimizer).__name__ for optimizer in optimizers]
    return {
        id(optimizer): name if classes.count(name) == 1 else f"{name}#{classes[:place].count(name)}"
        for place, (optimizer, name) in enumerate(zip(optimizers, classes, strict=True))
    }
