"""What an adapter tells of a library's optimizer, moment by moment; the loop hears it as it hears torch's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scalescope.readback import Reading, Value, at_hand
from scalescope.taps.library.optimizer import LibraryOptimizer, Source, nothing
from scalescope.taps.logged import as_value
from scalescope.taps.loop import Loop
from scalescope.updates import OptimizerVerdict


@dataclass(frozen=True, slots=True)
class Scaling:
    """A loss scaler between two updates; None for what it does not have. Numbers, readings, tensors of one element."""

    scale: object = None
    growth_tracker: object = None
    hysteresis: object = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an update ended.

    Attributes:
        before, after: the scaler as the update found it, and as it left it.
        skipped: whether it was skipped, above 0 for yes; a tensor of one element is read when it is there.
        rate: the learning rate in force.
        logged: what else the library knows of it, by the name of its series; None is left out.
    """

    before: Scaling
    after: Scaling
    skipped: object
    rate: object = None
    logged: Mapping[str, object] = field(default_factory=dict)


class LibraryTap:
    """One scope's ears on the optimizer of a library, whose adapter calls these in the training thread."""

    def __init__(self, loop: Loop, optimizer: LibraryOptimizer) -> None:
        self.loop = loop
        self._optimizer = optimizer
        self._number = loop.numbers[id(optimizer)]

    def attach(self) -> None:
        self._optimizer.library.attach(self)

    def remove(self) -> None:
        self._optimizer.library.remove()

    def gradients(self, source: Source) -> None:
        """Gradients are complete, still scaled and not yet clipped: measured if it is their turn."""
        if self.loop.sampling.due(self._number) and _has_any(source):
            self.loop.hear_backward()
            self._optimizer.source = source
            self.loop.sampling.take(self._number)

    def skipping(self, source: Source, scale: object, blind: str) -> None:
        """The update is skipped: its gradients tell which was the first, unless they were measured already.

        They are those of ``source``, divided by ``scale``: 1 where they are as they were. Where there are none,
        ``blind`` says why.
        """
        if self.loop.sampling.unscaled(self._number):
            return
        value = _value(scale)
        factor = None if value is None else at_hand(value)
        self._optimizer.source = source
        if factor is None or not _has_any(source):
            self.loop.sampling.cannot_see(blind)
        else:
            self.loop.hear_backward()
            self.loop.sampling.look(self._number, factor)

    def close(self, outcome: Outcome) -> None:
        """The update is over."""
        loop = self.loop
        loop.hear_backward()
        self._optimizer.param_groups[0]["lr"] = outcome.rate
        loop.consume(self._optimizer)
        told = {"hysteresis": outcome.before.hysteresis, **outcome.logged}
        loop.log({name: value for name, value in told.items() if value is not None})
        skipped = _value(outcome.skipped)
        found = () if skipped is None else (skipped,)
        loop.close(
            verdicts=[OptimizerVerdict(loop.name(self._optimizer), found)],
            scale=_value(outcome.before.scale),
            growth_tracker=_value(outcome.before.growth_tracker),
            next_scale=_value(outcome.after.scale),
        )
        # Nothing of an update's gradients is held beyond it.
        self._optimizer.source = nothing


def _has_any(source: Source) -> bool:
    return any(True for _ in source())


def _value(thing: object) -> Value | None:
    return thing if isinstance(thing, Reading) else as_value(thing)
