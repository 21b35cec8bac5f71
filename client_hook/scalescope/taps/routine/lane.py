"""The lane of an ordinary loop: one loss, one backward pass that begins at zero, one optimizer that the scaler steps.

What the notes would note of such an update is the same every time, so here it is only looked whether it came. Where
something did not come as ever, what there is of the update is noted after all, and the notes go on with it.

The training has had the cache to itself since the last update. What costs is not what is done here, it is how much
memory that touches, code included: so a moment is one function, and finds what it needs in one object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch.amp import GradScaler

from scalescope.taps.loop import Loop
from scalescope.taps.routine.course import Course, Moment
from scalescope.taps.routine.track import Track
from scalescope.taps.scaler.culprits import Found
from scalescope.taps.scaler.scale import Reader
from scalescope.taps.windows.clip import ClipCall

# By the scaler's id: those that are in use.
LANES: dict[int, Lane] = {}


class Successor(Protocol):
    """Who goes on with an update that does not go as ever: the notes."""

    # The last update that closed, and what the counters had to come by then.
    closed: tuple[int, int]

    def take_over(self, lane: Lane) -> None:
        """The lane is left: enter what came of the update under way."""

    def clipped(self, gradients: Sequence[torch.Tensor], call: ClipCall) -> bool:
        """Gradients are clipped. Whether that is all there is to it."""


class Lane:
    """See the module. Each moment answers whether it was as ever; after one that was not, this is no lane any more.

    Attributes:
        scaled: whether a loss was scaled in the update under way; ``gone``: and there was no gradient by then.
        taken: whether gradients were unscaled and found finite; ``identity``: that of the first one.
        untold: the inverse of the scale and what was found, until the step tells that all of it is finite.
        clipping: what was clipped, and how.
        asked, stepping, stepped: whether the step was asked for, is under way, and was done.
        left: the identity of the first gradient as the last update left it; None where it leaves none.
        updates: how many were in this lane.
        count: the growth tracker as the last update left it.
    """

    __slots__ = (
        "_due",
        "_first",
        "_last",
        "_loop",
        "_open",
        "_parameter",
        "_sampling",
        "_scale",
        "_scale_memory",
        "_scale_tensor",
        "_successor",
        "_tracker_memory",
        "_tracker_tensor",
        "_version",
        "asked",
        "clipping",
        "count",
        "course",
        "edge",
        "gone",
        "identity",
        "left",
        "optimizer",
        "scaled",
        "stepped",
        "stepping",
        "taken",
        "to_come",
        "track",
        "untold",
        "updates",
    )

    def __init__(
        self, successor: Successor, loop: Loop, track: Track, scale: Reader, tracker: Reader, course: Course
    ) -> None:
        """After an update of that ``course``, by its readers and its track."""
        self._successor, self._loop, self._sampling, self.edge = successor, loop, loop.sampling, loop.edge
        self.track, self.optimizer, self.course = track, loop.optimizers[track.number], course
        self._parameter, self._first, self._last = track.parameter, track.first, track.last
        self._scale_tensor, self._scale_memory, self._scale = scale.tensor, _there(scale), scale.value
        self._tracker_tensor, self._tracker_memory, self.count = tracker.tensor, _there(tracker), tracker.value
        # Of a gradient that is of one pass alone, once it is unscaled.
        self._version = (track.anew or 0) + (track.bump or 0)
        self.to_come, self.left, self.identity = track.to_come, track.at and track.at[0], 0
        # So many updates until one that may be sampled.
        self._due = loop.sampling.next_turn - loop.step - 1
        self.updates = 0
        self._open = True
        self.scaled = self.gone = self.taken = self.asked = self.stepping = self.stepped = False
        self.untold: tuple[torch.Tensor | None, Found] | None = None
        self.clipping: tuple[Sequence[torch.Tensor], ClipCall] | None = None

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

    def clipped(self, gradients: Sequence[torch.Tensor], call: ClipCall) -> bool:
        """Gradients of whomever are about to be clipped, or looked at for their norm."""
        if not self._loop.owners(gradients):
            return True
        clip = self.course.clip
        ready = self.taken and not self.asked and self.clipping is None and not call.raises
        if not (ready and clip and (call.kind, call.limit) == clip[1:] and self._loop.limited(call)):
            self.leave()
            return self._successor.clipped(gradients, call)
        self.clipping = gradients, call
        return True

    def steps(self, optimizer: torch.optim.Optimizer, *given: object) -> bool:
        """The scaler is asked for a step, and ``given`` things to do it with."""
        explicit = self.course.explicit
        if given or optimizer is not self.optimizer or self.asked or self.taken is not explicit or not self.scaled:
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

    def leave(self) -> bool:
        """Have the notes go on: there is no lane any more. Again: nothing."""
        if self._open:
            self._open = False
            self._successor.take_over(self)
        return False

    def hand_over(self, finite: Found) -> None:
        """Enter into the track what the lane knows of its gradients; ``finite``: in the place of what was found."""
        track, anew = self.track, self.track.anew or 0
        track.left = track.at = None if self.left is None else (self.left, anew + (track.after or 0))
        track.to_come = self.to_come
        if self.gone:
            track.at = None
        if self.taken:
            track.at, track.passes, track.fresh = (self.identity, anew), 1, True
            track.explicit, track.asked, track.found = self.course.explicit, self.asked, finite

    def moments(self) -> Iterator[Moment]:
        """What came of the update under way and was handed over, as the notes note it."""
        if self.scaled:
            yield "scaled", self._scale
        if self.taken:
            yield "find", self.track.number, self.track.at, False, 1
            yield "found", self.optimizer, None, self.track.found, self._scale, not self.course.explicit
        if self.clipping is not None:
            yield "clipping", *self.clipping
        if self.course.explicit and self.asked:
            yield "asked", self.track.number


def _is_finite(found: Found) -> bool:
    return all(tensor.is_cpu and not tensor.item() for tensor in found.values())


def _there(reader: Reader) -> memoryview:
    if reader.memory is None:
        raise ValueError("expected a number on the host, got one on a device")
    return reader.memory
