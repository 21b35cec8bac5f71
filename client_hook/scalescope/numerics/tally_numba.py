"""What updates did to weights, counted in one pass: the kernel as numba compiles it.

Rounding to a narrower format is done in float64: adding 1.5 x 2**52 quanta of that format, and taking them away again,
leaves what is nearest, ties to even. No liberty may be taken with that, and none is taken but with sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numba import njit, types

_F64s, _I64s, _U8s = types.CPointer(types.float64), types.CPointer(types.int64), types.CPointer(types.uint8)
SIGNATURE = types.int64(
    types.int64,  # rows
    _I64s,  # [rows] how many elements
    _F64s,  # [elements] weights before
    _F64s,  # [elements] change
    _U8s,  # [elements] whether the gradient is not zero
    _F64s,  # [elements] intended update
    _F64s,  # out [7, rows], in the order of changes.COLUMNS, with the squares as sums
)

# Pointers to values of that type, and one value.
F64s: TypeAlias = Any
I64s: TypeAlias = Any
U8s: TypeAlias = Any
F64: TypeAlias = Any
I64: TypeAlias = Any
F = TypeVar("F", bound=Callable[..., Any])

_EXPONENT, _BIAS = 0x7FF, 1023
# Beyond fp16 and bf16.
_BEYOND = _BIAS + 129


def _exact(function: F) -> F:
    compiled: Any = njit(error_model="numpy", boundscheck=False)(function)
    return compiled  # type: ignore[no-any-return]


@_exact
def _bits_of(value: F64) -> I64:
    return np.float64(value).view(np.int64)


@_exact
def _value_of(bits: I64) -> F64:
    return np.int64(bits).view(np.float64)


@_exact
def _rounded(value: F64, fraction: int, least: int, largest: float) -> F64:
    """To a format with so many bits of fraction, that least exponent of a normal, and that largest finite value."""
    exponent = (_bits_of(value) >> 52) & _EXPONENT
    if exponent == _EXPONENT:
        return value
    if exponent >= _BEYOND:
        return np.copysign(np.inf, value)
    quantum = max(exponent, _BIAS + least) - fraction
    far = _value_of(((quantum + 52) << 52) | (1 << 51))
    nearest = (value + far) - far
    return nearest if abs(nearest) <= largest else np.copysign(np.inf, value)


@_exact
def _fp16(value: F64) -> F64:
    return _rounded(value, 10, -14, 65504.0)


@_exact
def _bf16(value: F64) -> F64:
    return _rounded(value, 7, -126, (2.0 - 2.0**-7) * 2.0**127)


@_exact
def _absorbed(weight: F64, aim: F64) -> tuple[bool, bool]:
    half, brain = _fp16(weight), _bf16(weight)
    return _fp16(half + aim) == half, _bf16(brain + aim) == brain


@_exact
def _sums(start: int, end: int, before: F64s, change: F64s) -> tuple[float, float]:
    moved, weights = 0.0, 0.0
    for i in range(start, end):
        moved += change[i] * change[i]
        weights += before[i] * before[i]
    return moved, weights


@_exact
def _of_gradient(start: int, end: int, change: F64s, has_gradient: U8s) -> tuple[int, int]:
    known, unchanged = 0, 0
    for i in range(start, end):
        if has_gradient[i]:
            known += 1
            unchanged += change[i] == 0.0
    return known, unchanged


@_exact
def _of_intended(start: int, end: int, before: F64s, intended: F64s) -> tuple[int, int, int]:
    meant, in_fp16, in_bf16 = 0, 0, 0
    for i in range(start, end):
        aim = intended[i]
        # Neither zero nor NaN nor infinite: the last two have no difference to themselves.
        if aim != 0.0 and aim - aim == 0.0:
            half, brain = _absorbed(before[i], aim)
            meant += 1
            in_fp16 += half
            in_bf16 += brain
    return meant, in_fp16, in_bf16


def tally(rows: int, lengths: I64s, before: F64s, change: F64s, has_gradient: U8s, intended: F64s, out: F64s) -> int:
    start = 0
    for row in range(rows):
        end = start + lengths[row]
        out[row], out[rows + row] = _sums(start, end, before, change)
        out[2 * rows + row], out[3 * rows + row] = _of_gradient(start, end, change, has_gradient)
        meant = _of_intended(start, end, before, intended)
        out[4 * rows + row], out[5 * rows + row], out[6 * rows + row] = meant
        start = end
    return rows
