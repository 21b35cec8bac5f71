"""Packed samples unpacked many at a time: the kernel as numba compiles it.

It is one pass over what lies in the cache. Counts become float64 at once: of 32 bits in two halves, which vector
registers convert; their sums are whole numbers below 2**53 and so the same in any order.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numba import types

from scalescope.numerics.compiled import exact, summing

_U8s, _I64s, _F64s = types.CPointer(types.uint8), types.CPointer(types.int64), types.CPointer(types.float64)
SIGNATURE = types.int64(
    types.int64,  # samples
    types.int64,  # rows of each
    types.int64,  # columns of the stack
    types.int64,  # the most elements of a row
    _U8s,  # what the samples unpack to, one behind the other, as scalescope.packing has it
    _I64s,  # [samples] where each begins
    _I64s,  # [samples] the column of the stack at which its first one goes
    _I64s,  # [samples] how many columns it has
    _I64s,  # [samples] bytes of one count
    _F64s,  # out [samples, rows, columns] counts
    _I64s,  # out [samples, 3, rows] how many are zero, infinite and NaN
    _F64s,  # out [samples, rows] amax
    _F64s,  # out [samples, rows] sum of squares
)

# Pointers to values of that type, and one value.
U8s: TypeAlias = Any
I64s: TypeAlias = Any
F64s: TypeAlias = Any
U64: TypeAlias = Any
I32: TypeAlias = Any

_I32, _U64 = np.int32, np.uint64
_CLASSES = 3


@exact
def _word(raw: U8s, at: int, apart: int) -> U64:
    """Eight bytes, the lowest first, so far apart."""
    found = _U64(0)
    for byte in range(8):
        found |= _U64(_U64(raw[at + byte * apart]) << _U64(8 * byte))
    return found


@exact
def _half(raw: U8s, at: int, apart: int) -> I32:
    return _I32(raw[at]) | _I32(_I32(raw[at + apart]) << _I32(8))


@exact
def _row(raw: U8s, at: int, apart: int, width: int, size: int, counts: F64s, to: int) -> bool:
    """Counts of one row; whether none is negative, as those of the largest width can be."""
    signs = np.int64(0)
    if width == 1:
        for i in range(size):
            counts[to + i] = np.float64(raw[at + i])
    elif width == 2:
        for i in range(size):
            counts[to + i] = np.float64(_half(raw, at + i, apart))
    elif width == 4:
        for i in range(size):
            upper = _half(raw, at + i + 2 * apart, apart)
            counts[to + i] = np.float64(_half(raw, at + i, apart)) + 65536.0 * np.float64(upper)
    else:
        for i in range(size):
            count = np.int64(_word(raw, at + i, apart))
            signs |= count
            counts[to + i] = np.float64(count)
    return bool(signs >= 0)


@summing
def _sum(values: F64s, at: int, size: int) -> float:
    total = 0.0
    for i in range(at, at + size):
        total += values[i]
    return total


@exact
def _zero(values: F64s, at: int, size: int) -> None:
    for i in range(at, at + size):
        values[i] = 0.0


def unpack(
    samples: int,
    rows: int,
    columns: int,
    most: int,
    raw: U8s,
    starts: I64s,
    firsts: I64s,
    bins: I64s,
    widths: I64s,
    counts: F64s,
    classes: I64s,
    amax: F64s,
    squares: F64s,
) -> int:
    """1 if all of them are such as can be, 0 if any of them has to be looked at."""
    good: Any = True
    for sample in range(samples):
        first, size, width = firsts[sample], bins[sample], widths[sample]
        # The bytes of a count are so far apart; behind the counts lie the classes, behind these the values.
        apart, at = rows * size, starts[sample]
        whole = at + apart * width
        real = whole + 8 * _CLASSES * rows
        for row in range(rows):
            to = (sample * rows + row) * columns
            _zero(counts, to, first)
            good &= _row(raw, at + row * size, apart, width, size, counts, to + first)
            _zero(counts, to + first + size, columns - first - size)
            elements = _sum(counts, to + first, size)
            for each in range(_CLASSES):
                of_class = np.int64(_word(raw, whole + each * rows + row, _CLASSES * rows))
                classes[(sample * _CLASSES + each) * rows + row] = of_class
                elements += np.float64(of_class)
                good &= of_class >= 0
            largest = _U64(_word(raw, real + row, 2 * rows)).view(np.float64)
            square = _U64(_word(raw, real + rows + row, 2 * rows)).view(np.float64)
            amax[sample * rows + row], squares[sample * rows + row] = largest, square
            # NaN is in no order.
            good &= elements <= most and largest >= 0.0 and largest < np.inf and square >= 0.0
    return 1 if good else 0
