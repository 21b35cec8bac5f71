"""Sums and means of many columns at once: integers of one binary scale, in digits of 32 bits.

So all comes and goes exactly (see ``exact``), and is rounded once when asked.

A float64 is an integer of 53 bits times a power of two, which three digits hold wherever it begins. A column's sum is
a row of such digits, each in 64 bits and not carried over until it is asked for, so many rows are added up at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scalescope_server.rules.windows.exact import MANTISSA_BITS, integers, quotient
from scalescope_server.rules.windows.many import Counting, Pushed
from scalescope_server.rules.windows.ring import Entering

DIGIT_BITS = 32
# The digits that an integer of 53 bits takes, wherever in the lowest it begins.
_MANTISSA = 3
# Digits below the finest bit: as many as a quotient takes to be rounded.
_FRACTION = 3
# Above the highest bit: for the sums, and for their sign.
_CARRIES = 2
_DIGIT = (1 << DIGIT_BITS) - 1
# The exponent of the smallest normal float64.
_LEAST_NORMAL = -1022

Digits = NDArray[np.int64]


class Sums(Counting):
    """The float nearest to the true sum of each column; infinite where it is too large for one.

    ``_digits``: int64[n, d], the sums; digit k counts ``2 ** (_low + 32 k)``.
    """

    __slots__ = ("_digits", "_low")

    def __init__(self, columns: int) -> None:
        super().__init__(columns)
        self._low = 0
        self._digits = np.zeros((columns, 0), np.int64)
        self._widen(np.ones(1))

    def _values(self, pushed: Pushed) -> NDArray[np.float64]:
        self._widen(pushed.rows.filled())
        totals = pushed.running(self._digits, self._digits_of)
        self._digits = totals[-1].copy()
        return self._rounded(totals)

    def _rounded(self, totals: Digits) -> NDArray[np.float64]:
        return quotients(totals, np.ones_like(self._counts), self._low)

    def _widen(self, values: NDArray[np.float64]) -> None:
        """Have digits for ``values``."""
        _, exponents = integers(values[values != 0.0])
        # Without any they are those of a number near one.
        lowest = int(exponents.min(initial=-MANTISSA_BITS)) // DIGIT_BITS - _FRACTION
        highest = int(exponents.max(initial=-MANTISSA_BITS)) // DIGIT_BITS + _MANTISSA + _CARRIES
        first, digits = self._low // DIGIT_BITS, self._digits.shape[1]
        below, above = max(first - lowest, 0), max(highest - first - digits, 0)
        if below or above:
            self._digits = np.pad(self._digits, ((0, 0), (below, above)))
            self._low -= below * DIGIT_BITS

    def _digits_of(self, told: Entering) -> Digits:
        """int64[m, n, d]."""
        whole, exponents = integers(told.filled())
        found = np.zeros((*whole.shape, self._digits.shape[1]), np.int64)
        places = np.where(whole == 0, 0, exponents - self._low)
        digit, shift = places >> 5, places & 31
        sign, size = np.sign(whole), np.abs(whole)
        lower, upper = (size & _DIGIT) << shift, (size >> DIGIT_BITS) << shift
        places = digit + np.arange(0, found.size, found.shape[-1]).reshape(digit.shape)
        flat = found.reshape(-1)
        flat[places] = sign * (lower & _DIGIT)
        flat[places + 1] = sign * ((lower >> DIGIT_BITS) + (upper & _DIGIT))
        flat[places + 2] = sign * (upper >> DIGIT_BITS)
        return found


class Means(Sums):
    """The float nearest to the true mean of each column."""

    __slots__ = ()

    def _rounded(self, totals: Digits) -> NDArray[np.float64]:
        return quotients(totals, np.maximum(self._counts, 1), self._low)


def quotients(totals: Digits, divisors: NDArray[np.int64], low: int) -> NDArray[np.float64]:
    """The float nearest to each of ``totals``, int64[..., d], in digits that count ``2 ** (low + 32 k)``, divided by
    ``divisors``, int64[...], below 2^31.
    """
    digits = totals.copy()
    _carry(digits)
    negative = digits[..., -1] < 0
    if negative.any():
        turned = -digits[negative]
        _carry(turned)
        digits[negative] = turned
    rest = _divide(digits, divisors)
    found = _nearest(digits, rest, low)
    # Below the normal numbers a float has fewer bits, and would be rounded twice.
    small = (found < 2.0**_LEAST_NORMAL) & (digits.any(axis=-1) | (rest > 0))
    for place in zip(*small.nonzero(), strict=True):
        found[place] = abs(_exactly(totals[place], int(divisors[place]), low))
    return np.where(negative, -found, found)


def _carry(digits: Digits) -> None:
    """Let each digit but the last be one of 32 bits."""
    for place in range(digits.shape[-1] - 1):
        carried = digits[..., place] >> DIGIT_BITS
        digits[..., place] &= _DIGIT
        digits[..., place + 1] += carried


def _divide(digits: Digits, divisors: NDArray[np.int64]) -> NDArray[np.int64]:
    """By hand, from the highest digit on; answers what is left."""
    rest = np.zeros(divisors.shape, np.int64)
    if (divisors == 1).all():
        return rest
    for place in reversed(range(digits.shape[-1])):
        dividend = (rest << DIGIT_BITS) | digits[..., place]
        digits[..., place], rest = np.divmod(dividend, divisors)
    return rest


def _nearest(digits: Digits, rest: NDArray[np.int64], low: int) -> NDArray[np.float64]:
    """The normal float nearest to ``digits``, to which ``rest`` adds less than one of the lowest."""
    there = digits != 0
    top = digits.shape[-1] - 1 - there[..., ::-1].argmax(axis=-1)
    top = np.maximum(top, 2)
    first, second, third = (
        np.take_along_axis(digits, (top - place)[..., None], axis=-1)[..., 0].astype(np.uint64) for place in range(3)
    )
    below = ((there.argmax(axis=-1) < top - 2) & there.any(axis=-1)) | (rest > 0)
    # Shifted so that the highest bit of 64 is set; what is cut off sets the lowest, and the cast rounds it.
    shift = (DIGIT_BITS - np.frexp(first.astype(np.float64))[1]).astype(np.uint64)
    kept = np.uint64(DIGIT_BITS) - shift
    bits = ((first << np.uint64(DIGIT_BITS) | second) << shift) | (third >> kept)
    below |= (third & ((np.uint64(1) << kept) - np.uint64(1))) != 0
    bits |= below.astype(np.uint64)
    exponents = low + DIGIT_BITS * (top - 1) - shift.astype(np.int64)
    with np.errstate(over="ignore", under="ignore"):
        found: NDArray[np.float64] = np.ldexp(bits.astype(np.float64), exponents)
    return found


def _exactly(total: Digits, divisor: int, low: int) -> float:
    whole = sum(int(digit) << DIGIT_BITS * place for place, digit in enumerate(total.tolist()))
    return quotient(whole << max(low, 0), divisor << max(-low, 0))
