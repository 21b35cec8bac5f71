"""Median and quantiles: two heaps that meet at the quantile."""

from __future__ import annotations

import math
from array import array
from heapq import heapify, heappop, heappush

# A heap is made anew when so much of it has left the window, and it holds at least so many.
STALE_PART = 2
STALE_LEAST = 64
FIRST_PLACES = 16

_LOW, _HIGH = 0, 1
# A value, negated among the low ones, and its number.
Heap = list[tuple[float, int]]


class Quantile:
    """The quantile ``share`` (0 to 1), between two values in proportion (numpy's default, R's type 7).

    ``_low`` holds the ``floor(share (n - 1)) + 1`` smallest values, its largest on top, ``_high`` the others. Values
    are numbered as they come, and those from ``_first`` on are in the window. What has left it stays in its heap until
    it comes to the top or is half of it, so an update costs O(log n). ``_keys`` and ``_sides`` (which heap it is in)
    of value k stand at place k modulo their length, a power of two: in arrays, since there may be a window of
    thousands of values for each layer.
    """

    __slots__ = ("_first", "_high", "_in_high", "_in_low", "_keys", "_low", "_next", "_share", "_sides")

    def __init__(self, share: float = 0.5) -> None:
        self._share = share
        self._first = self._next = 0
        self._keys = array("d", bytes(8 * FIRST_PLACES))
        self._sides = bytearray(FIRST_PLACES)
        self._low: Heap = []
        self._high: Heap = []
        self._in_low = self._in_high = 0

    def push(self, key: float, value: float, oldest: float) -> float | None:
        number = self._next
        if number - self._first == len(self._keys):
            self._widen()
        self._keys[number & len(self._keys) - 1] = key
        self._next = number + 1
        if self._low and value <= -self._low[0][0]:
            self._put_low(value, number)
        else:
            self._put_high(value, number)
        return self.slide(oldest)

    def slide(self, oldest: float) -> float | None:
        keys, mask = self._keys, len(self._keys) - 1
        while self._first < self._next and keys[self._first & mask] <= oldest:
            if self._sides[self._first & mask] == _LOW:
                self._in_low -= 1
            else:
                self._in_high -= 1
            self._first += 1
        if self._first == self._next:
            self._low, self._high = [], []
            return None
        self._balance()
        return self._value()

    def _value(self) -> float:
        place = self._share * (self._next - self._first - 1)
        lower = -self._low[0][0]
        part = place - math.floor(place)
        if part == 0.0 or lower == self._high[0][0]:  # equal values stay what they are, to the last bit
            return lower
        return lower * (1.0 - part) + self._high[0][0] * part

    def _balance(self) -> None:
        low_count = math.floor(self._share * (self._next - self._first - 1)) + 1
        while self._in_low > low_count:
            value, number = self._pop(self._low)
            self._in_low -= 1
            self._put_high(-value, number)
        while self._in_low < low_count:
            value, number = self._pop(self._high)
            self._in_high -= 1
            self._put_low(value, number)
        self._low = self._tidy(self._low, self._in_low)
        self._high = self._tidy(self._high, self._in_high)

    def _put_low(self, value: float, number: int) -> None:
        heappush(self._low, (-value, number))
        self._sides[number & len(self._sides) - 1] = _LOW
        self._in_low += 1

    def _put_high(self, value: float, number: int) -> None:
        heappush(self._high, (value, number))
        self._sides[number & len(self._sides) - 1] = _HIGH
        self._in_high += 1

    def _pop(self, heap: Heap) -> tuple[float, int]:
        """The first of ``heap`` that is in the window, taken from it."""
        while heap[0][1] < self._first:
            heappop(heap)
        return heappop(heap)

    def _tidy(self, heap: Heap, living: int) -> Heap:
        """``heap`` with a living top, and mostly living."""
        if len(heap) > STALE_LEAST and len(heap) > STALE_PART * living:
            heap = [entry for entry in heap if entry[1] >= self._first]
            heapify(heap)
        while living and heap[0][1] < self._first:
            heappop(heap)
        return heap

    def _widen(self) -> None:
        """Twice the places, and each value that is in the window at its own."""
        keys, sides, mask = self._keys, self._sides, len(self._keys) - 1
        self._keys = array("d", bytes(2 * 8 * len(keys)))
        self._sides = bytearray(2 * len(sides))
        for number in range(self._first, self._next):
            self._keys[number & len(self._keys) - 1] = keys[number & mask]
            self._sides[number & len(self._sides) - 1] = sides[number & mask]
