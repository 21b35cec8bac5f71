"""Median and quantiles: two heaps that meet at the quantile."""

from __future__ import annotations

import math
from collections import deque
from heapq import heapify, heappop, heappush

# A heap is made anew when so much of it has left the window, and it holds at least so many.
STALE_PART = 2
STALE_LEAST = 64


class Quantile:
    """The quantile ``share`` (0 to 1), between two values in proportion (numpy's default, R's type 7).

    ``low`` holds the ``floor(share (n - 1)) + 1`` smallest values, its largest on top, ``high`` the others. What has
    left the window stays in its heap until it comes to the top or is half of it, so an update costs O(log n).
    """

    __slots__ = ("_entries", "_high", "_in_high", "_in_low", "_low", "_number", "_share", "_side", "_width")

    def __init__(self, width: float, share: float = 0.5) -> None:
        self._width = width
        self._share = share
        self._number = 0
        self._entries: deque[tuple[float, int]] = deque()
        self._low: list[tuple[float, int]] = []
        self._high: list[tuple[float, int]] = []
        # Which values are in the window, by number, and whether each of them is among the low ones.
        self._side: dict[int, bool] = {}
        self._in_low = self._in_high = 0

    def push(self, key: float, value: float) -> float | None:
        number = self._number
        self._number += 1
        self._entries.append((key, number))
        if self._low and value <= -self._low[0][0]:
            self._put_low(value, number)
        else:
            self._put_high(value, number)
        return self.slide(key)

    def slide(self, key: float) -> float | None:
        entries, oldest = self._entries, key - self._width
        while entries and entries[0][0] <= oldest:
            if self._side.pop(entries.popleft()[1]):
                self._in_low -= 1
            else:
                self._in_high -= 1
        if not entries:
            self._low, self._high = [], []
            return None
        self._balance()
        return self._value()

    def _value(self) -> float:
        place = self._share * (len(self._entries) - 1)
        lower = -self._low[0][0]
        part = place - math.floor(place)
        if part == 0.0 or lower == self._high[0][0]:  # equal values stay what they are, to the last bit
            return lower
        return lower * (1.0 - part) + self._high[0][0] * part

    def _balance(self) -> None:
        low_count = math.floor(self._share * (len(self._entries) - 1)) + 1
        while self._in_low > low_count:
            value, number = self._top(self._low, low=True)
            heappop(self._low)
            self._in_low -= 1
            self._put_high(-value, number)
        while self._in_low < low_count:
            value, number = self._top(self._high, low=False)
            heappop(self._high)
            self._in_high -= 1
            self._put_low(value, number)
        self._low = self._tidy(self._low, self._in_low, low=True)
        self._high = self._tidy(self._high, self._in_high, low=False)

    def _put_low(self, value: float, number: int) -> None:
        heappush(self._low, (-value, number))
        self._side[number] = True
        self._in_low += 1

    def _put_high(self, value: float, number: int) -> None:
        heappush(self._high, (value, number))
        self._side[number] = False
        self._in_high += 1

    def _tidy(self, heap: list[tuple[float, int]], living: int, *, low: bool) -> list[tuple[float, int]]:
        """``heap`` with a living top, and mostly living."""
        if len(heap) > STALE_LEAST and len(heap) > STALE_PART * living:
            heap = [entry for entry in heap if self._side.get(entry[1]) is low]
            heapify(heap)
        if living:
            self._top(heap, low=low)
        return heap

    def _top(self, heap: list[tuple[float, int]], *, low: bool) -> tuple[float, int]:
        """The first of ``heap`` that is in the window and on this side of the quantile; what is before it is gone."""
        while self._side.get(heap[0][1]) is not low:
            heappop(heap)
        return heap[0]
