"""The lane of an ordinary loop: one backward pass that begins at zero, one optimizer that is stepped.

What the notes would note of such an update is the same every time, so here it is only looked whether it came. Where
something did not come as ever, what there is of the update is noted after all, and the notes go on with it.

The training has had the cache to itself since the last update. What costs is not what is done here, it is how much
memory that touches, code included: so a moment is one function, and finds what it needs in one object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from scalescope.taps.loop import Loop
from scalescope.taps.routine.course import Course, Moment
from scalescope.taps.routine.track import Track
from scalescope.taps.windows.clip import ClipCall


class Successor(Protocol):
    """Who goes on with an update that does not go as ever: the notes."""

    # The last update that closed, and what the counters had to come by then.
    closed: tuple[int, int]

    def take_over(self) -> None:
        """The lane is left: enter what came of the update under way."""

    def clipped(self, gradients: Sequence[torch.Tensor], call: ClipCall) -> bool:
        """Gradients are clipped. Whether that is all there is to it."""


class Lane(ABC):
    """See the module. Each moment answers whether it was as ever; after one that was not, this is no lane any more.

    Attributes:
        taken: whether the gradients are known to be of the one pass; ``identity``: that of the first one.
        clipping: what was clipped, and how.
        asked: whether the step was asked for.
        left: the identity of the first gradient as the last update left it; None where it leaves none.
        updates: how many were in this lane.
    """

    __slots__ = (
        "_due",
        "_first",
        "_last",
        "_loop",
        "_open",
        "_parameter",
        "_sampling",
        "_successor",
        "_version",
        "asked",
        "clipping",
        "course",
        "edge",
        "identity",
        "left",
        "optimizer",
        "taken",
        "to_come",
        "track",
        "updates",
    )

    def __init__(self, successor: Successor, loop: Loop, track: Track, course: Course) -> None:
        """After an update of that ``course``, by its track."""
        self._successor, self._loop, self._sampling, self.edge = successor, loop, loop.sampling, loop.edge
        self.track, self.optimizer, self.course = track, loop.optimizers[track.number], course
        self._parameter, self._first, self._last = track.parameter, track.first, track.last
        # Of a gradient that is of one pass alone, once it is unscaled.
        self._version = (track.anew or 0) + (track.bump or 0)
        self.to_come, self.left, self.identity = track.to_come, track.at and track.at[0], 0
        # So many updates until one that may be sampled.
        self._due = loop.sampling.next_turn - loop.step - 1
        self.updates = 0
        self._open = True
        self.taken = self.asked = False
        self.clipping: tuple[Sequence[torch.Tensor], ClipCall] | None = None

    def clipped(self, gradients: Sequence[torch.Tensor], call: ClipCall) -> bool:
        """Gradients of whomever are about to be clipped, or looked at for their norm."""
        if not self._loop.owners(gradients):
            return True
        clip = self.course.clip
        ready = clip and (call.kind, call.limit) == clip[1:] and self.clipping is None and not call.raises
        if not (ready and self._may_be_clipped() and self._loop.limited(call)):
            self.leave()
            return self._successor.clipped(gradients, call)
        self.clipping = gradients, call
        return True

    def leave(self) -> bool:
        """Have the notes go on: there is no lane any more. Again: nothing."""
        if self._open:
            self._open = False
            self._successor.take_over()
        return False

    def hand_over(self) -> None:
        """Enter into the track what the lane knows of its gradients."""
        track, anew = self.track, self.track.anew or 0
        track.left = track.at = None if self.left is None else (self.left, anew + (track.after or 0))
        track.to_come = self.to_come
        if self.taken:
            track.at, track.passes, track.fresh = (self.identity, anew), 1, True
            track.asked = self.asked

    def moments(self) -> Iterator[Moment]:
        """What came of the update under way and was handed over, as the notes note it."""
        if self.taken:
            yield "find", self.track.number, self.track.at, False, 1
        if self.clipping is not None:
            yield "clipping", *self.clipping

    @abstractmethod
    def _may_be_clipped(self) -> bool:
        """Whether a clipping comes when it does in an update of the usual kind."""
