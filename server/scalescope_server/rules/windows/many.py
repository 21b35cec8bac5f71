"""The same functions of many layers, modules or ranks at once: rows of values, one column for each.

What they say of a column is what the functions of one window say, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from scalescope_server.rules.windows import Window
from scalescope_server.rules.windows.rates import Rate
from scalescope_server.rules.windows.ring import Entering, Ring


class Pushed(NamedTuple):
    """The newest m rows of ``ring``, of n columns each.

    ``oldest``: float64[m], what was told at that key or before has left the window; ``firsts``: int64[m], the first row
    that is in it. ``asked``: bool[m, n], of which the answer is wanted. The rows from ``ring.first`` on are there.
    """

    ring: Ring
    oldest: NDArray[np.float64]
    firsts: NDArray[np.int64]
    asked: NDArray[np.bool_]

    @property
    def start(self) -> int:
        """The first of the rows."""
        return self.ring.stop - len(self.firsts)

    @property
    def rows(self) -> Entering:
        return self.ring.rows(self.start, self.ring.stop)

    def running(self, before: NDArray[Any], of: Callable[[Entering], NDArray[Any]]) -> NDArray[Any]:
        """The sum over the rows of the window of what is made ``of`` each, after each of the m: [m, ...]. ``before``:
        what it was.
        """
        sums = np.cumsum(of(self.rows), axis=0)
        sums += before
        gone = self.firsts - self.ring.first
        if gone[-1]:
            leaving = of(self.ring.rows(self.ring.first, int(self.firsts[-1])))
            left = np.zeros((len(leaving) + 1, *leaving.shape[1:]), leaving.dtype)
            np.cumsum(leaving, axis=0, out=left[1:])
            sums -= left[gone]
        return sums


# float64[m, n] and whether it is known, bool[m, n].
Said = tuple[NDArray[np.float64], NDArray[np.bool_]]


class Many(Protocol):
    """``push``: what the function says after each row that was pushed, where it is asked for."""

    def push(self, pushed: Pushed) -> Said: ...


class Newest:
    """The newest value: what was told."""

    __slots__ = ()

    def __init__(self, columns: int) -> None:
        del columns

    def push(self, pushed: Pushed) -> Said:
        return pushed.rows.values.copy(), pushed.rows.entered.copy()


class Counting:
    """What needs to know of how many rows of the window each column is.

    ``_counts``: int64[m, n], that after each row that was pushed last.
    """

    __slots__ = ("_counts",)

    def __init__(self, columns: int) -> None:
        self._counts = np.zeros((1, columns), np.int64)

    def push(self, pushed: Pushed) -> Said:
        self._counts = pushed.running(self._counts[-1], lambda told: told.entered.astype(np.int64))
        return self._values(pushed), self._counts > 0

    def _values(self, pushed: Pushed) -> NDArray[np.float64]:
        """The answers; free where ``_counts`` is 0."""
        raise NotImplementedError


class Held(Counting):
    """At how many updates of the window a condition held."""

    __slots__ = ("_held",)

    def __init__(self, columns: int) -> None:
        super().__init__(columns)
        self._held = np.zeros(columns)

    def _values(self, pushed: Pushed) -> NDArray[np.float64]:
        held = pushed.running(self._held, Entering.filled)
        self._held = held[-1].copy()
        return held


class HeldShare(Held):
    """At which share of those at which it was known."""

    __slots__ = ()

    def _values(self, pushed: Pushed) -> NDArray[np.float64]:
        return super()._values(pushed) / np.maximum(self._counts, 1)


class Largest(Counting):
    """The largest value.

    Of the rows before ``_middle`` stands in ``_front`` the largest from each on, of those after it in ``_back`` the
    largest of all: so a row that leaves costs nothing, and once they have all left, those after it are looked at again.
    ``sign``: -1 for the smallest.
    """

    __slots__ = ("_back", "_front", "_middle", "_sign")

    def __init__(self, columns: int, sign: float = 1.0) -> None:
        super().__init__(columns)
        self._sign = sign
        self._middle = 0
        self._front = np.empty((0, columns))
        self._back = np.full(columns, -np.inf)

    def _values(self, pushed: Pushed) -> NDArray[np.float64]:
        ring, found = pushed.ring, np.empty(self._counts.shape)
        rows = self._signed(pushed.rows)
        for index, first in enumerate(pushed.firsts.tolist()):
            stop = pushed.start + index + 1
            self._back = np.maximum(self._back, rows[index])
            if first >= self._middle:
                self._front = self._front_of(ring.rows(first, stop))
                self._middle, self._back = stop, np.full_like(self._back, -np.inf)
            found[index] = self._back
            if first < self._middle:
                np.maximum(found[index], self._front[first - self._middle], out=found[index])
        # A zero has no sign: which one it had would depend on what has left.
        return self._sign * found + 0.0

    def _front_of(self, told: Entering) -> NDArray[np.float64]:
        """The largest from each row on: float64[m, n]."""
        return np.maximum.accumulate(self._signed(told)[::-1], axis=0)[::-1]

    def _signed(self, told: Entering) -> NDArray[np.float64]:
        return np.where(told.entered, self._sign * told.values, -np.inf)


class Alone:
    """A window for each column, where there is no way to go by rows."""

    __slots__ = ("_windows",)

    def __init__(self, columns: int, make: Callable[[], Window]) -> None:
        self._windows = [make() for _ in range(columns)]

    def push(self, pushed: Pushed) -> Said:
        told, found = pushed.rows, np.full(pushed.asked.shape, np.nan)
        rows, columns = pushed.asked.nonzero()
        of_rows = (told.keys[rows], told.at[rows], pushed.oldest[rows])
        of_each = (told.values[rows, columns], told.entered[rows, columns])
        asked = zip(*(each.tolist() for each in (rows, columns, *of_rows, *of_each)), strict=True)
        for row, column, key, time, last, value, enters in asked:
            said = _told(self._windows[column], key, time, last, value, enters)
            if said is not None:
                found[row, column] = said
        return found, ~np.isnan(found)


def _told(window: Window, key: float, at: float, oldest: float, value: float, enters: bool) -> float | None:
    if not enters:
        return window.slide(oldest)
    if isinstance(window, Rate):
        window.at = at
    return window.push(key, value, oldest)
