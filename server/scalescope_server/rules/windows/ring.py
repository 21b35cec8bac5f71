"""What many layers told in a window, row by row, with what has left it making room at the head."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_FIRST_ROWS = 16


class Entering(NamedTuple):
    """Rows of n columns: ``keys``, ``at`` float64[m]; ``values`` float64[m, n]; ``entered`` bool[m, n], which of them
    are in the window, the others are free.
    """

    keys: NDArray[np.float64]
    at: NDArray[np.float64]
    values: NDArray[np.float64]
    entered: NDArray[np.bool_]

    def part(self, some: slice) -> Entering:
        return Entering(self.keys[some], self.at[some], self.values[some], self.entered[some])

    def filled(self) -> NDArray[np.float64]:
        """The values, 0 where none entered."""
        return np.where(self.entered, self.values, 0.0)


class Ring:
    """Rows are numbered as they come: ``first`` is the oldest that is kept, ``stop`` the number of the next."""

    __slots__ = ("_offset", "_rows", "first", "stop")

    def __init__(self, columns: int) -> None:
        self.first = self.stop = 0
        # Row r stands at the place r - _offset.
        self._offset = 0
        self._rows = _room(_FIRST_ROWS, columns)

    def rows(self, start: int, stop: int) -> Entering:
        """Those from ``start`` to before ``stop``: views, until something is pushed."""
        return self._rows.part(slice(start - self._offset, stop - self._offset))

    def push(self, told: Entering) -> None:
        """Take in rows."""
        stop = self.stop + len(told.keys)
        if stop - self._offset > len(self._rows.keys):
            self._make_room(stop - self.first)
        self._put(told, self.stop - self._offset)
        self.stop = stop

    def _make_room(self, rows: int) -> None:
        """Move what is kept to the head, and have twice as many places if that takes more than half of them."""
        kept = self.rows(self.first, self.stop)
        self._rows = _room(max(len(self._rows.keys), 2 * rows), kept.values.shape[1])
        self._put(kept, 0)
        self._offset = self.first

    def _put(self, told: Entering, place: int) -> None:
        for mine, new in zip(self._rows, told, strict=True):
            mine[place : place + len(new)] = new


def _room(rows: int, columns: int) -> Entering:
    return Entering(np.empty(rows), np.empty(rows), np.empty((rows, columns)), np.empty((rows, columns), np.bool_))
