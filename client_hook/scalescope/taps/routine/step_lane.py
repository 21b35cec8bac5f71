"""The lane of a loop without a scaler: one backward pass, perhaps one clipping, one step."""

from __future__ import annotations

from weakref import ref

import torch

from scalescope.taps.loop import Loop
from scalescope.taps.routine.course import Course
from scalescope.taps.routine.lane import Lane, Successor
from scalescope.taps.routine.track import Track

# No object is there.
_NOWHERE = 0


class StepLane(Lane):
    """See the module: what is heard of an update are both ends of its step.

    So several passes may come before anything is looked at. Whether they began at zero tells whether the gradient is
    the one that the last update left: another one may have come to its address.
    """

    __slots__ = ("_kept", "_taken")

    def __init__(self, successor: Successor, loop: Loop, track: Track, course: Course) -> None:
        super().__init__(successor, loop, track, course)
        gradient = track.parameter.grad
        self._kept = self._taken = gradient if gradient is None else ref(gradient)

    def steps(self, optimizer: torch.optim.Optimizer) -> bool:
        """A step begins, in which no closure runs the backward."""
        if optimizer is not self.optimizer or self.asked:
            return self.leave()
        if not (self._first() == self._last() == self.to_come if self.taken else self._take()):
            return self.leave()
        self.asked = True
        return True

    def stepped(self, optimizer: torch.optim.Optimizer) -> bool:
        """The step came to its end: the update is over."""
        if (
            optimizer is not self.optimizer
            or not self.asked
            or not self._first() == self._last() == self.to_come
            or (self.clipping is None) is not (self.course.clip is None)
            or not self._due
            or not self._sampling.quiet
        ):
            return self.leave()
        self._loop.backward_ran = True
        step = self._loop.close_routine(self.course.facts, None, None)
        self._successor.closed = step, 2 * self.to_come
        self.updates += 1
        self._due -= 1
        if self.left is not None:
            self.left, self._kept = self.identity, self._taken
        self.taken = self.asked = False
        self.clipping = None
        return True

    def hand_over(self) -> None:
        if self.left is not None and (self._kept is None or self._kept() is None):
            self.left = _NOWHERE
        super().hand_over()

    def _may_be_clipped(self) -> bool:
        return not self.asked and self._take()

    def _take(self) -> bool:
        """Whether the gradients are of one pass, and of that alone."""
        first, gradient = self._first(), self._parameter.grad
        if (
            first != self.to_come - 1
            or self._last() != first
            or gradient is None
            or gradient._version != self._version  # noqa: SLF001 - what a track goes by
            or type(gradient) is not torch.Tensor
            or gradient.requires_grad
        ):
            return False
        self.to_come, self.identity, self.taken, self._taken = first, id(gradient), True, ref(gradient)
        return True
