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
from scalescope.taps.backward.freshness import Stamp, stamp_of
from scalescope.taps.windows.window import Window


class Track:
    """See the module. ``passes`` are in the gradients of the update under way, which ``fresh`` began at zero.

    Attributes:
        seen: how many gradients the first parameter has got, as far as they were found.
        left: its gradient as the last update left it.
        regular: whether all passes so far did what one does.
        found: what the scaler found, a tensor of one element; None before it looked.
        asked, explicit: whether the scaler was asked for the step, and whether it had unscaled before that.
    """

    __slots__ = ("_at", "asked", "ends", "explicit", "found", "fresh", "left", "number", "passes", "regular", "seen")

    def __init__(self, number: int, ends: Ends) -> None:
        self.number = number
        self.ends = ends
        self.seen = ends.first()
        self.begin()

    def begin(self) -> None:
        """An update begins."""
        self.left = self._at = stamp_of(self.ends.parameter.grad)
        self.passes = 0
        self.fresh = self.asked = self.explicit = False
        self.regular = True
        self.found: torch.Tensor | None = None

    @property
    def alike(self) -> tuple[int, bool, bool]:
        """What tells its window from others."""
        return self.passes, self.fresh, self.explicit

    def find(self) -> tuple[Stamp, bool, int] | None:
        """The passes since the last time: the gradient, whether it has a graph, and how many; None for none."""
        count = self.ends.count()
        if count == self.seen:
            return None
        first = self.ends.first()
        added, self.seen = first - self.seen, first
        gradient = self.ends.parameter.grad
        stamp = stamp_of(gradient)
        graph = gradient is not None and gradient.requires_grad
        # One that is sharded is no tensor of its own.
        plain = type(gradient) is torch.Tensor and not graph
        if count is None or added != 1 or not plain or self.found is not None or not self._add(stamp):
            self.regular = False
        return stamp, graph, added

    def window(self, scale: Value | None, found: Sequence[Value]) -> Window:
        """Its window as those would tell it who hear all of it."""
        window = Window(0)
        window.runs = ((scale, self.passes),)
        window.unscale = "explicit" if self.explicit else "implicit"
        window.unscaled_by, window.found = scale, found
        window.passes = window.micro_batches = self.passes
        window.fresh = self.fresh
        return window

    def _add(self, stamp: Stamp) -> bool:
        last, self._at = self._at, stamp
        if stamp is None:
            return False
        fresh = last is None or stamp[0] != last[0] or stamp[1] <= last[1]
        if not fresh and last is not None and stamp[1] != last[1] + 1:
            return False
        if fresh or not self.passes:
            self.fresh, self.passes = fresh, 0
        self.passes += 1
        return True
