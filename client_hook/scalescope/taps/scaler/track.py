"""One optimizer in a routine: the backward passes that no hook heard, and what else was noted of it.

Counters without Python say how many passes there were (:mod:`~scalescope.taps.backward.ends`), and the first gradient,
by its identity and version, what they did to it: by the rules of :mod:`~scalescope.taps.backward.passes` and
``freshness``, of which only the regular cases are known here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scalescope.readback import Value
from scalescope.taps.backward.ends import Ends
from scalescope.taps.backward.freshness import Stamp
from scalescope.taps.windows.window import Window


class Track:
    """See the module. ``passes`` are in the gradients of the update under way, which ``fresh`` began at zero.

    Few calls are made here, and none to what an update needs for nothing else: each costs a microsecond, since the
    training has had the cache to itself in between.

    Attributes:
        left: the first parameter's gradient as the last update left it.
        at: the same, as it is to be found by the next pass; None where there is none.
        anew: the version of a gradient that is of one pass alone; None before one was seen.
        found: what the scaler found, a tensor of one element; None before it looked.
        asked, explicit: whether the scaler was asked for the step, and whether it had unscaled before that.
    """

    __slots__ = (
        "_first",
        "_last",
        "_to_come",
        "anew",
        "asked",
        "at",
        "explicit",
        "found",
        "fresh",
        "left",
        "number",
        "parameter",
        "passes",
    )

    def __init__(self, number: int, ends: Ends, anew: int | None) -> None:
        self.number = number
        self.anew = anew
        self.parameter, self._first, self._last = ends.parameter, ends.first.left, ends.last.left
        # The counters of both ends, which count down, at the last look.
        self._to_come = self._first()
        self.begin()

    def begin(self) -> int:
        """An update begins. The answer is to be compared with :meth:`counted`."""
        gradient = self.parameter.grad
        # The counter that autograd itself goes by when it checks what it saved.
        self.left = self.at = None if gradient is None else (id(gradient), gradient._version)  # noqa: SLF001
        self.passes = 0
        self.fresh = self.asked = self.explicit = False
        self.found: torch.Tensor | None = None
        return 2 * self._to_come

    def counted(self) -> int:
        """Less than what :meth:`begin` answered as soon as one end has got a gradient since. From any thread."""
        return self._first() + self._last()

    def is_through(self) -> bool:
        """Whether no backward pass came since the last one that was found."""
        return self._first() == self._last() == self._to_come

    def find(self) -> tuple[bool, tuple[Stamp, bool, int] | None]:
        """Whether at most one pass ran since the last time, and did what one does.

        And, if any did: the gradient, whether it has a graph of its own, and how many they were.
        """
        first, last = self._first(), self._last()
        if first == last == self._to_come:
            return True, None
        added, self._to_come = self._to_come - first, first
        gradient, before = self.parameter.grad, self.at
        if gradient is None:
            return False, (None, False, added)
        identity, version = self.at = id(gradient), gradient._version  # noqa: SLF001 - as above
        graph = gradient.requires_grad
        # One that is sharded is no tensor of its own.
        regular = first == last and added == 1 and not graph and type(gradient) is torch.Tensor and self.found is None
        fresh = before is None or identity != before[0] or version <= before[1]
        if fresh:
            if self.anew is None:
                self.anew = version
            follows = version == self.anew
            if version > self.anew:
                # Changed after the pass, which the next one would have told: it left this.
                self.at = identity, self.anew
        else:
            follows = before is None or version == before[1] + 1
        if fresh or not self.passes:
            self.fresh, self.passes = fresh, 0
        self.passes += 1
        return regular and follows, (self.at, graph, added)

    def window(self, scale: Value | None, found: Sequence[Value]) -> Window:
        """Its window as those would tell it who hear all of it."""
        window = Window(0)
        window.runs = ((scale, self.passes),)
        window.unscale = "explicit" if self.explicit else "implicit"
        window.unscaled_by, window.found = scale, found
        window.passes = window.micro_batches = self.passes
        window.fresh = self.fresh
        return window
