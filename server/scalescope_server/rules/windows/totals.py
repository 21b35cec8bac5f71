"""Sum, mean and z-score: exact integers come and go (see ``exact``), and are rounded once when asked."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalescope_server.rules.windows.exact import FIRST_BITS, finest_bit, integers, quotient


class Totals:
    """What sums have in common: the values in the window as integers of a common scale ``2^bits``, and their sum."""

    __slots__ = ("_bits", "_entries", "_total")

    def __init__(self) -> None:
        self._bits = FIRST_BITS
        self._entries: deque[tuple[float, int]] = deque()
        self._total = 0

    def push(self, key: float, value: float, oldest: float) -> float | None:
        numerator, denominator = value.as_integer_ratio()
        shift = self._bits - denominator.bit_length() + 1
        if shift < 0:
            self._refine(finest_bit(value))
            shift = 0
        number = numerator << shift
        self._entries.append((key, number))
        self._enter(number)
        return self.slide(oldest)

    def push_all(
        self, keys: NDArray[np.float64], values: NDArray[Any], oldest: NDArray[np.float64]
    ) -> list[float | None]:
        """As :meth:`push` of one after the other, each [n]: a million stored updates are a million of them."""
        numbers, found = self._numbers(values.astype(np.float64)), []
        entries, enter, leave, value = self._entries, self._enter, self._leave, self._value
        for key, number, last in zip(keys.tolist(), numbers, oldest.tolist(), strict=True):
            entries.append((key, number))
            enter(number)
            while entries and entries[0][0] <= last:
                leave(entries.popleft()[1])
            found.append(value() if entries else None)
        return found

    def slide(self, oldest: float) -> float | None:
        entries = self._entries
        while entries and entries[0][0] <= oldest:
            self._leave(entries.popleft()[1])
        return self._value() if entries else None

    def _enter(self, number: int) -> None:
        self._total += number

    def _leave(self, number: int) -> None:
        self._total -= number

    def _numbers(self, values: NDArray[np.float64]) -> list[int]:
        """``values`` as integers of the scale, which is made fine enough for them."""
        whole, exponents = integers(values)
        bits = -int(exponents.min(initial=0))
        if bits > self._bits:
            self._refine(bits)
        shifts = (exponents + self._bits).tolist()
        return [number << shift for number, shift in zip(whole.tolist(), shifts, strict=True)]

    def _refine(self, bits: int) -> None:
        finer = bits - self._bits
        self._bits = bits
        self._total <<= finer
        self._entries = deque((key, number << finer) for key, number in self._entries)

    def _value(self) -> float | None:
        raise NotImplementedError


class Sum(Totals):
    """The float nearest to the true sum; infinite where it is too large for one."""

    __slots__ = ()

    def _value(self) -> float | None:
        return quotient(self._total, 1 << self._bits)


class Mean(Totals):
    """The float nearest to the true mean."""

    __slots__ = ()

    def _value(self) -> float | None:
        return quotient(self._total, len(self._entries) << self._bits)


class ZScore(Totals):
    """How many standard deviations the newest value lies from the mean of those before it in the window.

    With n values of sum s and sum of squares q before x: (n x - s) / sqrt(n q - s^2), of the population's deviation.
    Both are exact integers here, so nothing cancels. Not known of fewer than two before it, nor where these are all
    alike and x is not.
    """

    __slots__ = ("_squares",)

    def __init__(self) -> None:
        super().__init__()
        self._squares = 0

    def _enter(self, number: int) -> None:
        self._total += number
        self._squares += number * number

    def _leave(self, number: int) -> None:
        self._total -= number
        self._squares -= number * number

    def _refine(self, bits: int) -> None:
        self._squares <<= 2 * (bits - self._bits)
        super()._refine(bits)

    def _value(self) -> float | None:
        before = len(self._entries) - 1
        if before < 2:
            return None
        newest = self._entries[-1][1]
        total = self._total - newest
        away = before * newest - total
        spread = before * (self._squares - newest * newest) - total * total
        if spread == 0:
            return None if away else 0.0
        score = math.sqrt(quotient(away * away, spread))
        return score if away >= 0 else -score
