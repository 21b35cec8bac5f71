"""Median and quantiles of many columns at once."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray

from scalescope_server.rules.windows.many import Counting, Pushed


class Quantiles(Counting):
    """The quantile ``share`` (0 to 1), between two values in proportion, as in ``ordered``.

    The values of each column stand in order, equal ones as they came: to find a place takes O(log n), to make room
    there moves memory, which is nothing beside the rest below some 10,000 of them.
    """

    __slots__ = ("_columns", "_left", "_share")

    def __init__(self, columns: int, share: float = 0.5) -> None:
        super().__init__(columns)
        self._share = share
        self._columns = [array("d") for _ in range(columns)]
        # The first row that has not been taken out.
        self._left = 0

    def _values(self, pushed: Pushed) -> NDArray[np.float64]:
        last = np.maximum(self._counts - 1, 0)
        places = self._share * last
        lower = np.floor(places)
        parts = places - lower
        low, high = np.empty(last.shape), np.empty(last.shape)
        below = lower.astype(np.int64)
        above = np.minimum(below + 1, last)
        for index, first in enumerate(pushed.firsts.tolist()):
            self._move(pushed, pushed.start + index, first)
            low[index] = self._at(below[index])
            high[index] = self._at(above[index])
        with np.errstate(all="ignore"):
            between = low * (1.0 - parts) + high * parts
        return np.where((parts == 0.0) | (low == high), low, between)

    def _move(self, pushed: Pushed, row: int, first: int) -> None:
        """Take in ``row``, and out what was before ``first``."""
        for column, value in self._entered(pushed, row):
            insort(column, value)
        for left in range(self._left, first):
            for column, value in self._entered(pushed, left):
                del column[bisect_left(column, value)]
        self._left = max(self._left, first)

    def _entered(self, pushed: Pushed, row: int) -> list[tuple[array[float], float]]:
        told = pushed.ring.rows(row, row + 1)
        rows = zip(self._columns, told.values[0].tolist(), told.entered[0].tolist(), strict=True)
        return [(column, value) for column, value, enters in rows if enters]

    def _at(self, places: NDArray[np.int64]) -> list[float]:
        columns = zip(self._columns, places.tolist(), strict=True)
        return [column[place] if column else 0.0 for column, place in columns]
