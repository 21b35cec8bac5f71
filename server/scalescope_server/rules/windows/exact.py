"""Floats as integers of one binary scale: their sums are exact, whatever comes and goes.

A running float sum from which old values are subtracted keeps the error of every value it has ever seen: after one
1e16 in a series of ones it is wrong for ever. Integers forget what has left. Their quotient is rounded once, correctly.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# A float64 is an integer of so many bits, times a power of two.
MANTISSA_BITS = 53
# The finest power of two of an fp32 value, with room for its halves; finer ones make the scale finer.
FIRST_BITS = 160


def finest_bit(value: float) -> int:
    """The smallest n >= 0 with which ``value * 2^n`` is an integer."""
    return value.as_integer_ratio()[1].bit_length() - 1


def quotient(numerator: int, denominator: int) -> float:
    """The float nearest to the quotient; infinite where it is too large for one. ``denominator`` > 0."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf


def integers(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Integers of at most ``MANTISSA_BITS`` bits and exponents, of the shape of ``values``, which are finite: each is
    its integer times two to its exponent.
    """
    parts, exponents = np.frexp(values)
    return np.ldexp(parts, MANTISSA_BITS).astype(np.int64), exponents - MANTISSA_BITS
