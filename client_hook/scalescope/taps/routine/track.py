"""One optimizer in a routine: the backward passes that no hook heard, and what else was noted of it.

Counters without Python say how many passes there were (:mod:`~scalescope.taps.backward.ends`), and the first gradient,
by its identity and version, what they did to it: by the rules of :mod:`~scalescope.taps.backward.passes` and
``freshness``, of which only the regular cases are known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from scalescope.readback import Value
from scalescope.taps.backward.ends import Ends
from scalescope.taps.backward.freshness import Stamp, stamp_of
from scalescope.taps.windows.window import Window

# A gradient as backward passes left it, whether it has a graph of its own, and how many they were.
Pass = tuple[Stamp, bool, int]


class Track:
    """See the module. ``passes`` are in the gradients of the update under way, which ``fresh`` began at zero.

    Few calls are made here, and none to what an update needs for nothing else: each costs a microsecond, since the
    training has had the cache to itself in between.

    Attributes:
        left: the first parameter's gradient as the last update left it.
        at: the same, as it is to be found by the next pass; None where there is none.
        anew: the version of a gradient that is of one pass alone; None before one was seen.
        after: what counts that version up from a pass to the end of its update; None where none is left by then.
        bump: what unscaling counts a gradient's version up by; None before that was seen.
        found: what the scaler found, a tensor of one element by its device; None before it looked.
        asked, explicit: whether the step was asked for, and whether the scaler had unscaled before that.
        decides: whether the optimizer itself, and not the scaler, decides on what was found.
    """

    __slots__ = (
        "after",
        "anew",
        "asked",
        "at",
        "bump",
        "decides",
        "explicit",
        "first",
        "found",
        "fresh",
        "last",
        "left",
        "number",
        "parameter",
        "passes",
        "to_come",
    )

    def __init__(self, number: int, ends: Ends, optimizer: torch.optim.Optimizer, before: Track | None) -> None:
        """``before``: the track of the same optimizer in the update before, whose versions are the same."""
        self.number = number
        self.decides = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        self.after: int | None = None if before is None else before.after
        self.anew: int | None = None if before is None else before.anew
        self.bump: int | None = None if before is None else before.bump
        # The counters of both ends, which count down, and where they were at the last look.
        self.parameter, self.first, self.last = ends.parameter, ends.first.left, ends.last.left
        self.to_come = self.first()
        self.left = self.at = stamp_of(self.parameter.grad)
        self.passes = 0
        self.fresh = self.asked = self.explicit = False
        self.found: Mapping[torch.device, torch.Tensor] | None = None

    def renew(self, *, known: bool) -> bool:
        """An update is over and the next begins. Whether it left of the gradient what the last one left of its own.

        ``known``: that is taken for granted, without a look.
        """
        if not known:
            known = self._settle()
        elif self.at is not None:
            self.at = None if self.after is None else (self.at[0], self.at[1] + self.after)
        self.left = self.at
        self.passes = 0
        self.fresh = self.asked = self.explicit = False
        self.found = None
        return known

    def counted(self) -> int:
        """What both counters have to come: less as soon as one end has got a gradient. From any thread."""
        return self.first() + self.last()

    def is_through(self) -> bool:
        """Whether no backward pass came since the last one that was found."""
        return self.first() == self.last() == self.to_come

    def find(self, since: int = 0) -> tuple[bool, Sequence[Pass]]:
        """Whether at most one pass ran since the last time, and did what one does. And those that did.

        ``since``: what the gradient's version was counted up by after them.
        """
        first, last = self.first(), self.last()
        if first == last == self.to_come:
            return True, ()
        added, self.to_come = self.to_come - first, first
        gradient, before = self.parameter.grad, self.at
        if gradient is None:
            return False, ((None, False, added),)
        # The counter that autograd itself goes by when it checks what it saved.
        identity, version = self.at = id(gradient), gradient._version - since  # noqa: SLF001
        graph = gradient.requires_grad
        # One that is sharded is no tensor of its own.
        plain = first == last and not graph and type(gradient) is torch.Tensor
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
        # What a gradient held of this update was thrown away, with all that was noted of it.
        anew = fresh and self.passes > 0
        if fresh or not self.passes:
            self.fresh, self.passes = fresh, 0
        self.passes += 1
        if added > 1:
            begun = self.anew if before is None or fresh else before[1] + 1
            return False, _each(identity, version, begun or 0, added) if plain else ((self.at, graph, added),)
        return plain and follows and not anew and self.found is None, ((self.at, graph, 1),)

    def see_unscaled(self) -> None:
        """The scaler has just unscaled what was found."""
        stamp, before = stamp_of(self.parameter.grad), self.at
        same = stamp is not None and before is not None and stamp[0] == before[0]
        self.bump = stamp[1] - before[1] if same and stamp and before else None

    def _settle(self) -> bool:
        at, before = self.at, self.after
        stamp = self.at = stamp_of(self.parameter.grad)
        if stamp is None or at is None:
            self.after = None
        elif stamp[0] == at[0]:
            self.after = stamp[1] - at[1]
        else:
            return False
        return self.after == before

    def window(self, scale: Value | None = None) -> Window:
        """What those who hear all of it would tell of its window's passes, under ``scale``."""
        window = Window(0)
        window.runs = ((scale, self.passes),)
        window.passes = window.micro_batches = self.passes
        window.fresh = self.fresh
        return window


def _each(identity: int, version: int, begun: int, added: int) -> Sequence[Pass]:
    """So many passes one by one, if all are in a gradient that is at ``version`` and was at ``begun`` after the first.

    Each counts the version up by one. Else it is not known which of them are in it.
    """
    if version != begun + added - 1:
        return (((identity, version), False, added),)
    return [((identity, begun + number), False, 1) for number in range(added)]
