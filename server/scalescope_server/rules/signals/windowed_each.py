"""Functions over windows of what each layer, module or rank told."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from scalescope_server.rules.keys import Keys, same
from scalescope_server.rules.signals.each import Each
from scalescope_server.rules.signals.rows import Rows, any_of, lapsing
from scalescope_server.rules.signals.signal import Now, Span
from scalescope_server.rules.signals.windowed import Reach, Reached
from scalescope_server.rules.windows.many import Many, Pushed, Said
from scalescope_server.rules.windows.ring import Entering, Ring

# So many values are looked at at once: a sum takes some twenty times their memory meanwhile.
MOST_CELLS = 1 << 17


class WindowedEach(Each):
    """``make``: a window of so many columns. Before it has filled it has no value, unless ``early`` is 0.

    What is in the window stands in ``_ring``, by the columns ``_keys``.
    """

    __slots__ = ("_early", "_finite", "_keys", "_make", "_many", "_newest", "_of", "_reach", "_ring")

    def __init__(self, of: Each, make: Callable[[int], Many], reach: Reach, *, early: int | None, finite: bool) -> None:
        super().__init__()
        self._of = of
        self._make = make
        self._reach = reach
        self._early = early
        self._finite = finite
        self._keys: Keys = ()
        self._ring = Ring(0)
        self._many = make(0)
        self._newest = -math.inf

    def tick(self, now: Now) -> None:
        if not now.is_update:
            return
        reach = self._reach
        if self._of.fresh or (self._newest <= reach.oldest and self.rows.known[-1].any()):
            reached = Reached(np.array([reach.oldest]), np.array([reach.full]))
            self._move(np.array([reach.ruler.key(now)]), np.array([now.at]), reached)
        else:
            self.rest()

    def over(self, span: Span) -> None:
        assert self._reach.column is not None
        self._move(self._reach.ruler.keys(span), span.at, self._reach.column)

    def _move(self, keys: NDArray[np.float64], at: NDArray[np.float64], reached: Reached) -> None:
        """Over updates with these keys, at these times, at which the window has ``reached`` so far."""
        of = self._of.rows
        self._take_up(of.keys)
        places, values, known = of.at[of.fresh], of.values[of.fresh], of.known[of.fresh]
        entered = known & np.isfinite(values) if self._finite else known
        said, has = self._push(Entering(keys[places], at[places], values, entered), reached.oldest[places], known)
        has &= known
        if self._early != 0:
            has &= reached.full[places, None]
        rows = self.rows.then(Rows(of.keys, places, said, has, np.ones(len(places), np.bool_)))
        newest = np.concatenate(([self._newest], keys[places]))
        self.set(lapsing(rows, newest, reached.oldest))
        self._newest = float(newest[-1])

    def _push(self, told: Entering, oldest: NDArray[np.float64], asked: NDArray[np.bool_]) -> Said:
        """What the window says after each row, where it is ``asked``."""
        ring, found, has = self._ring, np.zeros(asked.shape), np.zeros(asked.shape, np.bool_)
        size = max(MOST_CELLS // max(len(self._keys), 1), 1)
        for start in range(0, len(asked), size):
            some = slice(start, start + size)
            ring.push(told.part(some))
            firsts = ring.first + ring.rows(ring.first, ring.stop).keys.searchsorted(oldest[some], side="right")
            # Of updates at one time all may have left, and those that come after them not be there yet.
            firsts = np.minimum(firsts, np.arange(ring.stop - len(firsts), ring.stop) + 1)
            found[some], has[some] = self._many.push(Pushed(ring, oldest[some], firsts, asked[some]))
            ring.first = int(firsts[-1])
        return found, has

    def _take_up(self, keys: Keys) -> None:
        """Go on with these columns, as if those that are new had always been there."""
        if same(keys, self._keys):
            return
        kept = self._ring.rows(self._ring.first, self._ring.stop)
        rows = Rows(self._keys, np.arange(len(kept.keys)), kept.values, kept.entered, any_of(kept.entered)).under(keys)
        self._keys, self._ring, self._many = keys, Ring(len(keys)), self._make(len(keys))
        none_left = np.full(len(kept.keys), -np.inf)
        self._push(Entering(kept.keys, kept.at, rows.values, rows.known), none_left, rows.known)
