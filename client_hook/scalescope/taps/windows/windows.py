"""The windows of a training: one for each optimizer, gathered side by side and told with the update they end in.

A window ends when its optimizer was asked to step. What comes after, such as the gradients that a generator's loss
leaves in a discriminator that has just stepped, is of the next one.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence

import torch

from scalescope.readback import Value, at_hand, read_later, ready
from scalescope.taps.backward.watch import BackwardWatch, anything_compiled
from scalescope.taps.windows.clip import ClipCall
from scalescope.taps.windows.finite import count_nonfinite
from scalescope.taps.windows.told import Told, told_of
from scalescope.taps.windows.window import Window
from scalescope.updates import OptimizerVerdict

# What one update names of optimizers that did this or that.
_MAX_NAMES = 64


class UpdateFacts:
    """What is told of one update's windows."""

    outside: Sequence[str] = ()
    closure = raises = recreated = False

    def __init__(self, windows: dict[str, Window], verdicts: Sequence[OptimizerVerdict], *, partial: bool) -> None:
        self.windows = windows
        self.verdicts = verdicts
        # Whether some watched optimizer took no part.
        self._partial = partial

    def ready(self) -> bool:
        verdicts = all(ready(value) for verdict in self.verdicts for value in verdict.found)
        return verdicts and all(window.ready() for window in self.windows.values())

    def told(self) -> Told:
        told = told_of(self.windows)
        idle = [verdict.optimizer for verdict in self.verdicts if not verdict.stepped and not verdict.overflowed()]
        told |= {"not_stepped": idle[:_MAX_NAMES]} if idle else {}
        told |= {"stepped_outside": list(self.outside)[:_MAX_NAMES]} if self.outside else {}
        told |= {"closure_with_scaler": True} if self.closure else {}
        told |= {"error_if_nonfinite": True} if self.raises else {}
        told |= {"scaler_recreated": True} if self.recreated else {}
        return told | ({"optimizers": list(self.windows)[:_MAX_NAMES]} if self._partial else {})


class Windows:
    """See the module. Optimizers go by their number; methods are named after the moment they are called at."""

    def __init__(
        self, optimizers: Sequence[torch.optim.Optimizer], names: Sequence[str], backward: BackwardWatch
    ) -> None:
        # Whether an enabled scaler is watched.
        self.scaler = False
        # The scale that the last loss was multiplied by, and how many were so far.
        self.scale: Value | None = None
        self.calls = 0
        # Models that hold back their exchange between ranks under no_sync().
        self.parallel: Sequence[weakref.ref[torch.nn.Module]] = ()
        # Whose step the scaler was asked for in this update, and how many losses had been scaled by then.
        self._asked: dict[int, int] = {}
        # Whether that step is running: what a closure in it adds to the gradients is stepped with.
        self.stepping = False
        self.outside: dict[str, None] = {}
        self.closure = self.raises = self.recreated = False
        self._optimizers = optimizers
        self._names = names
        self._backward = backward
        self._open = [Window(0) for _ in optimizers]
        self._sealed: dict[int, Window] = {}
        # By number: what was found when it was skipped last, until it was looked whether its gradients stayed.
        self._skipped: dict[int, Sequence[Value]] = {}
        self._clean: dict[int, int] = {}

    def hear_from(self, models: Iterable[torch.nn.Module], *, scaled: bool) -> None:
        """What is watched: ``models``, with an enabled scaler or without."""
        self.scaler = scaled
        self.parallel = [weakref.ref(model) for model in models if hasattr(model, "require_backward_grad_sync")]

    @property
    def is_wary(self) -> bool:
        """Whether gradients are to be looked at before the next backward."""
        return bool(self._skipped) or self._backward.is_wary

    def at_rest(self) -> bool:
        """Whether nothing was heard of the update under way, nor is to be looked for in it."""
        odd = self._skipped or self._sealed or self._asked or self.outside or self.closure or self.raises
        return not (odd or self.recreated or any(window.begun for window in self._open))

    def syncs(self) -> bool:
        """Whether no model holds back its exchange between ranks just now."""
        return all(_syncs(model()) for model in self.parallel)

    def resume(self, calls: int, last: int) -> None:
        """Go on after updates that were not gathered here: the last one, which was clean, and so many losses."""
        self.calls = calls
        self._open = [Window(calls) for _ in self._optimizers]
        self._clean = dict.fromkeys(range(len(self._optimizers)), last)

    def scaled(self, scale: Value | None) -> None:
        """A loss was multiplied by ``scale``; a backward pass is about to run."""
        self.scale = scale
        self.calls += 1
        self._backward.look_ahead()
        if self._skipped:
            self._look_for_stale()

    def taken_over(self, number: int, scale: Value | None) -> None:
        """A scaler that was not heard so far unscales or steps an optimizer: ``scale`` is what its losses had.

        What reached others without a loss that was heard to be scaled had it as well.
        """
        self.scale, self.recreated = scale, True
        for other, window in enumerate(self._open):
            if other == number or not window.loss_scaled:
                window.scaled_by(scale)

    def counted(self, number: int | None, passes: int | None) -> None:
        """A backward pass has reached the gradients of an optimizer, in which there are so many now."""
        if number is None:
            return
        window = self._open[number]
        if number in self._asked and not self.stepping and number not in self._sealed:
            window = self._part(number, window.passes, self._asked[number])
        window.passes = passes
        scale = self.scale
        if passes == 1 and window.unscaled_by is None:
            # What was there before was thrown away: of a generator's loss, that has a scaler of its own.
            window.loss_scaled = True
        if self.scaler and window.since == self.calls and (self.calls or not anything_compiled()):
            # A graph may have been compiled around a scale() that was not heard: where none ever was, none is missed.
            window.loss_scaled, scale = False, 1.0
        window.hear(scale, passes)
        if self.parallel and not self.syncs():
            window.no_sync = True

    def unscaled(self, number: int, scale: Value | None, *, asked: bool) -> None:
        """Gradients were divided by ``scale``, in a step that the scaler was asked for or before one."""
        window = self._open[number]
        window.unscale = "implicit" if asked else "explicit"
        window.unscaled_by = scale
        if asked:
            self.asked(number)

    def clipped(self, numbers: Iterable[int], call: ClipCall) -> Value | None:
        """Gradients of these optimizers are about to be clipped. The answer is their norm, if it is known."""
        norm = None if call.norm is None else read_later(call.norm)
        for number in numbers:
            self._open[number].clip(call, norm, self.scale if self.scaler else None)
        return norm

    def asked(self, number: int) -> None:
        """The scaler is asked for the optimizer's step."""
        self.stepping = True
        self._asked[number] = self.calls

    def look_at_gradients(self, number: int) -> None:
        """An optimizer is asked to step. What ``unscale_`` had found finite may not be so any more."""
        window = self._open[number]
        if window.unscale == "explicit":
            window.at_step = count_nonfinite(_gradients(self._optimizers[number]))

    def look_at_weights(self, number: int) -> None:
        """An optimizer is skipped. After a clean update the weights may be the reason, and not the scale."""
        last = self._clean.get(number)
        if last is not None:
            window = self._open[number]
            window.last_clean = last
            window.in_weights = count_nonfinite(_parameters(self._optimizers[number]))

    def hooked(self, number: int) -> None:
        """The optimizer's own hooks were heard in the scaler's step."""
        self._sealed.get(number, self._open[number]).hooked = True

    def seal(self, number: int) -> None:
        """What an optimizer has of gradients is used up."""
        window = self._open[number]
        if window.runs or window.late:
            self._part(number, self._backward.passes(number), self.calls)
        elif number not in self._sealed:
            self._part(number, None, self.calls)

    def _part(self, number: int, passes: int | None, calls: int) -> Window:
        """Its window ended after so many ``calls``, with so many passes in its gradients: the next one."""
        window = self._open[number]
        if window.runs or window.late:
            window.micro_batches = passes
            window.fresh = self._backward.fresh(number)
        if self.scaler and window.unscale is None:
            window.unscale = "none"
        self._sealed[number] = window
        self._open[number] = following = Window(calls)
        return following

    def close(self, step: int, consumed: Iterable[int], verdicts: Sequence[OptimizerVerdict]) -> UpdateFacts:
        """The facts of the update ``step``, in which the gradients of the optimizers ``consumed`` were used up."""
        for number in consumed:
            if number not in self._sealed:
                self.seal(number)
        windows = {self._names[number]: window for number, window in self._sealed.items()}
        for verdict in verdicts:
            if verdict.optimizer in windows:
                windows[verdict.optimizer].found = verdict.found
                self._remember(self._names.index(verdict.optimizer), verdict.found, step)
        facts = UpdateFacts(windows, verdicts, partial=len(windows) < len(self._optimizers))
        if self.outside or self.closure or self.raises or self.recreated:
            facts.outside, facts.closure = list(self.outside), self.closure
            facts.raises, facts.recreated = self.raises, self.recreated
            self.outside, self.closure, self.raises, self.recreated = {}, False, False, False
        self._sealed = {}
        self._asked.clear()
        return facts

    def _remember(self, number: int, found: Sequence[Value], step: int) -> None:
        for value in found:
            # One that is not here yet may be anything.
            if value != 0.0:
                self._clean.pop(number, None)
                self._skipped[number] = found
                return
        self._clean[number] = step

    def _look_for_stale(self) -> None:
        skipped, self._skipped = self._skipped, {}
        for number, found in skipped.items():
            overflowed = any((at_hand(value) or 0.0) > 0 for value in found)
            if overflowed and self._backward.untouched(number):
                self._open[number].stale = count_nonfinite(_gradients(self._optimizers[number]))


def _syncs(model: object) -> bool:
    return getattr(model, "require_backward_grad_sync", True) is not False


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _gradients(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (parameter.grad for parameter in _parameters(optimizer) if parameter.grad is not None)
