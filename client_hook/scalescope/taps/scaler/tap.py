"""What is heard of a loss scaler, moment by moment, and what it says of the update under way.

The scaler's tensors are read through its attributes, since its public getters make the host wait for the device.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch.amp import GradScaler

from scalescope.readback import Value, at_hand
from scalescope.taps.facts import is_among_ranks
from scalescope.taps.loop import Loop
from scalescope.taps.optimizer import has_hooks
from scalescope.taps.parameters import Parameters
from scalescope.taps.routine.scaler import ScalerNotes
from scalescope.taps.scaler.culprits import Found
from scalescope.taps.scaler.device import Awaited, DeviceSide
from scalescope.taps.scaler.outside import OutsideSteps
from scalescope.taps.scaler.scale import Reader
from scalescope.updates import OptimizerVerdict

_NO_SCALE = "the loss scale was not on the host when the step was skipped"


# Scale, growth tracker and verdicts before an update; None for verdicts that it leaves as they are.
Before = tuple[Value | None, Value | None, Sequence[OptimizerVerdict] | None]
_NOTHING: Before = (None, None, ())


class ScalerTap:
    """One scope's ears on one scaler. Methods are named after the moment they are called at."""

    def __init__(self, loop: Loop, parameters: Parameters) -> None:
        self.loop = loop
        self.device = DeviceSide(loop, parameters)
        # Weak: what listens to a scaler is kept as long as that lives, and must not keep it alive in turn.
        self.latest: weakref.ref[GradScaler] | None = None
        # Optimizer's id -> the optimizer and what was found for it; and the same as far as it was read at once.
        self._found: dict[int, tuple[torch.optim.Optimizer, Found]] = {}
        self._read: dict[int, list[Value]] = {}
        # Whose step the scaler is asked for just now, and whether its end is to be heard.
        self.stepping_now: torch.optim.Optimizer | None = None
        self.awaits_step = False
        self._before: Before | None = None
        # What was found, on its way with what the update has left.
        self._arriving: list[Value] | None = None
        self._scale, self._tracker = Reader("_scale"), Reader("_growth_tracker")
        self.outside = OutsideSteps(loop)
        self.routine = ScalerNotes(loop, self._scale, self._tracker, self)
        # Whose step was heard, and whether it was the scaler's.
        self._stepped = self.routine.stepped

    def scaler(self) -> GradScaler | None:
        """The scaler in use: of several that took turns, the one that was met last."""
        return None if self.latest is None else self.latest()

    def taken_over(self, scaler: GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """Another scaler than so far is about to unscale or step an optimizer: it has scaled its losses."""
        self.routine.leave()
        if id(optimizer) in self._found:
            self._forsake()
        self.loop.windows.taken_over(self.loop.numbers[id(optimizer)], self._scale.read(scaler))

    def wants_scale(self, scaler: GradScaler) -> bool:
        """Whether there is more to a loss that is scaled than to count it."""
        windows = self.loop.windows
        same = windows.scale is self._scale.value and self._scale.is_current(scaler)
        return not same or windows.is_wary or self.loop.stopwatch.running

    def scaled(self, scaler: GradScaler) -> None:
        """A loss was scaled."""
        if self.loop.stopwatch.running:
            self.loop.stopwatch.loss_scaled()
        self.loop.windows.scaled(self._scale.read(scaler))

    def unscaling(self, optimizer: torch.optim.Optimizer) -> None:
        """Gradients are complete and still scaled: they are measured if that is due. Called without an edge."""
        if self.routine.noting:
            self.loop.edge.call(self.routine.unscaling, optimizer)
        number = self.loop.numbers.get(id(optimizer))
        if number is not None and self.loop.sampling.due(number):
            self.loop.edge.call(self._measure, number)

    def _measure(self, number: int) -> None:
        self.loop.catch_up()
        self.loop.hear_backward()
        self.loop.sampling.take(number)

    def unscaled(
        self, scaler: GradScaler, optimizer: torch.optim.Optimizer, inverse: torch.Tensor | None, found: Found
    ) -> None:
        """Gradients were checked, and multiplied by ``inverse`` (1 when a fused optimizer unscales itself)."""
        asked = self.stepping_now is optimizer
        if not self.routine.unscaled(optimizer, found, asked=asked):
            self.found(optimizer, inverse, found, self._scale.read(scaler), asked=asked)

    def found(
        self,
        optimizer: torch.optim.Optimizer,
        inverse: torch.Tensor | None,
        found: Found,
        scale: Value | None,
        asked: bool,
    ) -> None:
        """The same, as it is heard in full: gradients were divided by ``scale``, in a step that was ``asked`` for."""
        self.loop.catch_up()
        self._found[id(optimizer)] = (optimizer, found)
        if not self.loop.backward_ran:
            self.loop.hear_backward()
        number = self.loop.consume(optimizer)
        if number is not None:
            self.loop.windows.unscaled(number, scale, asked=asked)
        if self.loop.sampling.unscaled(number):
            return
        values: list[Value] = []
        for tensor in found.values():
            if self.device.is_away(tensor):
                self.device.unscaled(optimizer, found, scale, asked=self.stepping_now is optimizer)
                self.awaits_step = id(optimizer) in self.device.awaited
                return
            value = tensor.item()
            if value:
                left_scaled = inverse is not None and inverse.item() == 1.0
                self._look(optimizer, 1.0 if left_scaled else scale)
                return
            values.append(value)
        self._read[id(optimizer)] = values

    def caught_up(self) -> None:
        """What was noted of this update has been told: whether a step is running is known here."""
        self.loop.windows.stepping = self.stepping_now is not None

    def goes_on_stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """The scaler is in the middle of a step that it was asked for."""
        self.stepping_now, self.awaits_step = optimizer, False

    def given_closure(self) -> None:
        """``step`` was given a closure."""
        self.routine.leave()
        self.loop.windows.closure = True

    def wants_step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether there is more to a step than the unscaling in it, which is heard by itself."""
        key = id(optimizer)
        if self.routine.noting and key in self.routine.tracks and self.routine.tracks[key].found is not None:
            return True
        return self.loop.stopwatch.running or key in self._found

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        if self.routine.stepping(optimizer):
            return
        self.awaits_step = self.loop.stopwatch.running or id(optimizer) in self.device.awaited
        if self.loop.stopwatch.running:
            self.loop.stopwatch.step_began()
        number = self.loop.numbers.get(id(optimizer))
        if number in self.loop.sampling.parts:
            self.loop.windows.look_at_gradients(number)
        if number is not None:
            self.loop.windows.asked(number)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """The scaler's step is over."""
        if self.loop.stopwatch.running:
            self.loop.stopwatch.step_ended()
        awaited = self.device.awaited.pop(id(optimizer), None)
        if awaited is not None:
            self._decide(optimizer, awaited)

    def _decide(self, optimizer: torch.optim.Optimizer, awaited: Awaited) -> None:
        """``step`` has made the host wait for what a device found, and went by it."""
        key = id(optimizer)
        if self._stepped.get(key):
            self._read[key] = self.device.decided[key] = [0.0] * len(self._found[key][1])
        elif awaited.skipped() and awaited.explicit:
            self.loop.windows.look_at_weights(self.loop.numbers[key])
        elif awaited.skipped():
            self._look(optimizer, awaited.scale)

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """A step came to its end, whoever asked for it. Of a step that is skipped, only a fused one does.

        Called without an edge: to enter one that the scaler was asked for takes less than to guard and time it. A
        scaler may be given what only wraps the optimizer whose hooks are heard.
        """
        lane = self.routine.lane
        if lane is not None and lane.has_stepped(optimizer):
            return
        self._stepped[id(optimizer)] = self.stepping_now is not None
        untold = self.routine.untold
        if untold is not None and untold[0] is optimizer:
            self.routine.untold = None
        if self.stepping_now is None:
            self.loop.edge.call(self._step_outside, optimizer)

    def _step_outside(self, optimizer: torch.optim.Optimizer) -> None:
        self.routine.leave()
        number = self.loop.numbers.get(id(optimizer))
        if number is not None:
            self.outside.step(number, self.loop.windows.scale)

    def wants_update(self, scaler: GradScaler) -> bool:
        """Whether not all is known of an update before it happens. Among ranks verdicts may have become one."""
        known = self._scale.is_current(scaler) and self._tracker.is_current(scaler)
        read = len(self._read) == len(self._found) or self._left_as_it_is() is not None
        return not (known and read) or is_among_ranks()

    def updating(self, scaler: GradScaler) -> None:
        """Before ``update``, which adds into the verdicts and changes the scale in place."""
        if self.routine.agreed():
            return
        self._before = _NOTHING
        self._read = dict(self.device.decided)
        verdicts = None if self._left_as_it_is() is not None else list(map(self._verdict, self._found.values()))
        self._before = (self._scale.read(scaler), self._tracker.read(scaler), verdicts)

    def updated(self, scaler: GradScaler, was_set: bool) -> None:
        """After ``update``. One that only sets the scale, with no gradient looked at, attempts nothing."""
        if not self.routine.alone:
            self.routine.updated(scaler, was_set)
        before, self._before = self._before, None
        last, self.routine.outgrown = self.routine.outgrown, None
        if before is None:
            before = (self._scale.value if last is None else last, self._tracker.value, None)
        scale, tracker, verdicts = before
        on_device = self._read_after(scaler)
        if verdicts is None:
            verdicts = list(map(self._verdict, self._found.values()))
        self._clear()
        if was_set and not verdicts:
            self.loop.set_scale(scale, self._scale.read(scaler))
            return
        if self.outside.unclosed:
            self.outside.closed()
        update = self.loop.close(
            verdicts=verdicts,
            scale=scale,
            growth_tracker=tracker,
            next_scale=self._scale.read(scaler),
            scale_was_set=was_set,
        )
        if not on_device:
            self.routine.consider(update)

    def finish(self) -> None:
        """Nothing more is heard: what was stepped, and not closed by an update of the scaler, is an update too."""
        self.routine.leave(odd=False)
        self.outside.finish()
        if self._found.keys() & self._stepped.keys():
            self._forsake()
        self.device.finish()

    def _left_as_it_is(self) -> torch.Tensor | None:
        """The only verdict of an update, on a device and not read yet: it would add to it what others found."""
        if self._read or len(self._found) != 1:
            return None
        ((_, found),) = self._found.values()
        tensor = next(iter(found.values())) if len(found) == 1 else None
        return tensor if tensor is not None and self.device.is_away(tensor) else None

    def _read_after(self, scaler: GradScaler) -> bool:
        """Read what ``update`` has left; whether that is on a device, where it takes one transfer in all."""
        scale: torch.Tensor | None = getattr(scaler, "_scale", None)
        tracker: torch.Tensor | None = getattr(scaler, "_growth_tracker", None)
        if scale is None or tracker is None or not self.device.is_away(scale):
            self._tracker.reread(scaler)
            return False
        found = self._left_as_it_is()
        values = self.device.read([scale, tracker] if found is None else [scale, tracker, found])
        self._scale.take(scale, values[0])
        self._tracker.take(tracker, values[1])
        if found is not None:
            self._arriving = values[2:]
        return True

    def _clear(self) -> None:
        """Nothing is awaited of the update any more."""
        self._found.clear()
        self._read.clear()
        self._stepped.clear()
        self._arriving = None
        self.device.closed()

    def _verdict(self, looked_at: tuple[torch.optim.Optimizer, Found]) -> OptimizerVerdict:
        optimizer, found = looked_at
        key = id(optimizer)
        values = self._read.get(key)
        if values is None:
            arriving, self._arriving = self._arriving, None
            values = self.device.read(list(found.values())) if arriving is None else arriving
            if self._stepped.get(key):
                self.loop.windows.hooked(self.loop.numbers[key])
        # Where steps are not heard, it is taken that there was one.
        stepped = key in self._stepped or not self.loop.watches(optimizer) or not has_hooks(optimizer)
        return OptimizerVerdict(self.loop.name(optimizer), values, stepped, self.device.counted.get(key, ()))

    def _forsake(self) -> None:
        """The scaler so far was never asked to update: what it has unscaled is an update all the same."""
        scale, verdicts = self.loop.windows.scale, list(map(self._verdict, self._found.values()))
        self._clear()
        self.outside.closed()
        self.loop.close(verdicts=verdicts, scale=scale, next_scale=scale)

    def _look(self, optimizer: torch.optim.Optimizer, scale: Value | None) -> None:
        """Measure a skipped step: its gradients, times the scale that they were divided by."""
        factor = None if scale is None else at_hand(scale)
        number = self.loop.numbers.get(id(optimizer))
        if number is not None:
            self.loop.windows.look_at_weights(number)
        if factor is None:
            self.loop.sampling.cannot_see(_NO_SCALE)
        else:
            self.loop.sampling.look(number, factor)
