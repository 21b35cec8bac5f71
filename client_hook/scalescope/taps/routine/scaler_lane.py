"""The lane of a loop with a scaler: one loss is scaled, its gradients are unscaled, found finite and stepped with."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.amp import GradScaler

from scalescope.taps.loop import Loop
from scalescope.taps.routine.course import Course, Moment
from scalescope.taps.routine.lane import Lane, Successor
from scalescope.taps.routine.track import Track
from scalescope.taps.scaler.culprits import Found
from scalescope.taps.scaler.scale import Reader

# By the scaler's id: those that are in use.
LANES: dict[int, ScalerLane] = {}


class ScalerLane(Lane):
    """See the module.

    Attributes:
        scaled: whether a loss was scaled in the update under way; ``gone``: and there was no gradient by then.
        untold: the inverse of the scale and what was found, until the step tells that all of it is finite.
        stepping, stepped: whether the step that was asked for is under way, and was done.
        count: the growth tracker as the last update left it.
    """

    __slots__ = (
        "_finite",
        "_scale",
        "_scale_memory",
        "_scale_tensor",
        "_tracker_memory",
        "_tracker_tensor",
        "count",
        "gone",
        "scaled",
        "stepped",
        "stepping",
        "untold",
    )

    def __init__(
        self,
        successor: Successor,
        loop: Loop,
        track: Track,
        scale: Reader,
        tracker: Reader,
        course: Course,
        finite: Found,
    ) -> None:
        """After an update of that ``course``, by its readers and its track; ``finite`` stands for what was found."""
        super().__init__(successor, loop, track, course)
        self._scale_tensor, self._scale_memory, self._scale = scale.tensor, _there(scale), scale.value
        self._tracker_tensor, self._tracker_memory, self.count = tracker.tensor, _there(tracker), tracker.value
        self._finite = finite
        self.scaled = self.gone = self.stepping = self.stepped = False
        self.untold: tuple[torch.Tensor | None, Found] | None = None

    def scales(self, scaler: GradScaler) -> bool:
        """A loss was scaled."""
        if self.edge.silent:
            return True
        gone = self._parameter.grad is None
        same = scaler._scale is self._scale_tensor and self._scale_memory[()] == self._scale  # noqa: SLF001 - as below
        # A backward pass of a loss that was not scaled may have come before.
        untouched = self._first() == self._last() == self.to_come
        if self.scaled or not same or not untouched or not (gone or self.left):
            return self.leave()
        self.scaled, self.gone = True, gone
        return True

    def takes(self, optimizer: torch.optim.Optimizer, inverse: torch.Tensor | None, found: Found) -> bool:
        """Gradients were checked, and multiplied by ``inverse``."""
        first, gradient = self._first(), self._parameter.grad
        if (
            optimizer is not self.optimizer
            or not self.scaled
            or self.taken
            or self.asked is self.course.explicit
            or first != self.to_come - 1
            or self._last() != first
            or gradient is None
            or gradient._version != self._version  # noqa: SLF001 - what a track goes by
            or type(gradient) is not torch.Tensor
            or gradient.requires_grad
            or len(found) != 1
        ):
            return self.leave()
        if self.asked:
            self.untold = inverse, found
        elif not _is_finite(found):
            return self.leave()
        self.to_come, self.identity, self.taken = first, id(gradient), True
        self._loop.backward_ran = True
        self._loop.note_rate()
        return True

    def steps(self, optimizer: torch.optim.Optimizer, *, bare: bool) -> bool:
        """The scaler is asked for a step; ``bare``: and given nothing to do it with."""
        explicit = self.course.explicit
        if not bare or optimizer is not self.optimizer or self.asked or self.taken is not explicit or not self.scaled:
            return self.leave()
        if explicit and not self._first() == self._last() == self.to_come:
            return self.leave()
        self.asked = self.stepping = True
        return True

    def has_stepped(self, optimizer: torch.optim.Optimizer) -> bool:
        """A step came to its end, whoever asked for it."""
        if optimizer is not self.optimizer or not self.stepping or self.stepped or not self.taken:
            return self.leave()
        self.stepped, self.untold = True, None
        return True

    def step_is_over(self) -> bool:
        """The step that the scaler was asked for has ended, and was one."""
        if not (self._open and self.stepped):
            return self.leave()
        self.stepping = False
        return True

    def updated(self, scaler: GradScaler) -> bool:
        """The update is over."""
        if (
            not self.stepped
            or scaler._scale is not self._scale_tensor  # noqa: SLF001 - as the readers do
            or self._scale_memory[()] != self._scale
            or scaler._growth_tracker is not self._tracker_tensor  # noqa: SLF001
            or not self._first() == self._last() == self.to_come
            or (self.clipping is None) is not (self.course.clip is None)
            or not self._due
            or not self._sampling.quiet
        ):
            return self.leave()
        count, self.count = self.count, float(self._tracker_memory[()])
        step = self._loop.close_routine(self.course.facts, self._scale, count)
        self._successor.closed = step, 2 * self.to_come
        self.updates += 1
        self._due -= 1
        if self.left is not None:
            self.left = self.identity
        self.scaled = self.gone = self.taken = self.asked = self.stepping = self.stepped = False
        self.untold = self.clipping = None
        return True

    def hand_over(self) -> None:
        super().hand_over()
        if self.taken:
            self.track.explicit, self.track.found = self.course.explicit, self._finite
        elif self.gone:
            self.track.at = None

    def moments(self) -> Iterator[Moment]:
        if self.scaled:
            yield "scaled", self._scale
        for moment in super().moments():
            yield moment
            if moment[0] == "find":
                yield "found", self.optimizer, None, self.track.found, self._scale, not self.course.explicit
        if self.course.explicit and self.asked:
            yield "asked", self.track.number

    def _may_be_clipped(self) -> bool:
        return self.taken and not self.asked


def _is_finite(found: Found) -> bool:
    return all(tensor.is_cpu and not tensor.item() for tensor in found.values())


def _there(reader: Reader) -> memoryview:
    if reader.memory is None:
        raise ValueError("expected a number on the host, got one on a device")
    return reader.memory
