"""What updates did to weights, counted a block at a time: the kernel as numba compiles it.

An absorbed update is told by exponents alone, as :mod:`~scalescope.numerics.changes_host` says: integers that fit into
vector registers, without a branch. Weights are rounded to the narrower formats in integers too; those in float64, which
must not be rounded twice, by adding 1.5 x 2**52 quanta and taking them away again. No liberty is taken but with sums.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numba import types

from scalescope.numerics.compiled import exact, summing

BLOCK = 1024

_F32s, _F64s = types.CPointer(types.float32), types.CPointer(types.float64)
_I64s, _I32s, _U32s = types.CPointer(types.int64), types.CPointer(types.int32), types.CPointer(types.uint32)
SIGNATURE = types.int64(
    types.int64,  # rows
    _I64s,  # [rows] how many elements
    types.int64,  # whether the weights are float64
    _F32s,  # [elements] weights before, read as this or as the next
    _F64s,
    _F32s,  # [elements] weights after
    _F64s,
    _U32s,  # [elements] gradients, fp32
    types.int64,  # whether updates were intended that cannot be seen
    _F64s,  # [elements] intended updates
    _F64s,  # scratch [2 * BLOCK]
    _I32s,  # scratch [4 * BLOCK]
    _F64s,  # out [7, rows], in the order of changes.NORMS, OF_GRADIENT and OF_INTENDED, with the squares as sums
)

# Pointers to values of that type, and one value.
F32s: TypeAlias = Any
F64s: TypeAlias = Any
I64s: TypeAlias = Any
I32s: TypeAlias = Any
U32s: TypeAlias = Any
F64: TypeAlias = Any
I64: TypeAlias = Any
I32: TypeAlias = Any
U32: TypeAlias = Any

_U32, _I32 = np.uint32, np.int32
_EXPONENT, _BIAS = 0x7FF, 1023
_SIGNLESS, _INFINITE = _U32(0x7FFFFFFF), _U32(0x7F800000)
# In fp32: the smallest normal of fp16, and from where on fp16 is infinite.
_NORMAL16, _INFINITE16 = _U32(113 << 23), _U32(0x477FF000)
_HALF = _U32(0x3F000000)
# The scratch of integers has: weights in a narrower format, signs and exponents of aims, what else they are.
_EXPONENTS, _SIGNS, _KINDS = BLOCK, 2 * BLOCK, 3 * BLOCK
_POWER, _MEANT = 1, 2
# Beyond fp16 and bf16.
_BEYOND = _BIAS + 129


@exact
def _bits_of(value: F64) -> I64:
    return np.float64(value).view(np.int64)


@exact
def _value_of(bits: I64) -> F64:
    return np.int64(bits).view(np.float64)


@exact
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


@exact
def _word(value: F64) -> U32:
    return np.float32(value).view(np.uint32)


@exact
def _fp16(word: U32) -> I32:
    """The bits in fp16 of a value whose bits in fp32 these are. Any NaN becomes one."""
    magnitude = _U32(word & _SIGNLESS)
    # One half has the spacing of fp16's subnormals.
    subnormal = _U32(_word(np.float32(_U32(magnitude).view(np.float32) + np.float32(0.5))) - _HALF)
    normal = _U32(_U32(magnitude - _U32(112 << 23) + _U32(0xFFF) + ((magnitude >> 13) & _U32(1))) >> 13)
    large = _U32(0x7C00) if magnitude <= _INFINITE else _U32(0x7E00)
    found = subnormal if magnitude < _NORMAL16 else (normal if magnitude < _INFINITE16 else large)
    return _I32(found | ((word >> 16) & _U32(0x8000)))


@exact
def _bf16(word: U32) -> I32:
    rounded = _U32(_U32(word + _U32(0x7FFF) + ((word >> 16) & _U32(1))) >> 16)
    return _I32(rounded if (word & _SIGNLESS) <= _INFINITE else _U32(0x7FC0))


@exact
def _hold_fp16(wide: int, words: F32s, wides: F64s, start: int, size: int, held: I32s) -> None:
    if wide:
        for i in range(size):
            held[i] = _fp16(_word(_rounded(wides[start + i], 10, -14, 65504.0)))
    else:
        for i in range(size):
            held[i] = _fp16(_word(words[start + i]))


@exact
def _hold_bf16(wide: int, words: F32s, wides: F64s, start: int, size: int, held: I32s) -> None:
    if wide:
        for i in range(size):
            held[i] = _bf16(_word(_rounded(wides[start + i], 7, -126, (2.0 - 2.0**-7) * 2.0**127)))
    else:
        for i in range(size):
            held[i] = _bf16(_word(words[start + i]))


@exact
def _widen(wide: int, words: F32s, wides: F64s, start: int, size: int, out: F64s, at: int) -> None:
    if wide:
        for i in range(size):
            out[at + i] = wides[start + i]
    else:
        for i in range(size):
            out[at + i] = np.float64(words[start + i])


@summing
def _squares(values: F64s, at: int, size: int) -> float:
    total = 0.0
    for i in range(at, at + size):
        total += values[i] * values[i]
    return total


@exact
def _of_gradient(gradient: U32s, start: int, size: int, moved: F64s) -> tuple[I32, I32]:
    known, unchanged = _I32(0), _I32(0)
    for i in range(size):
        has = _I32((gradient[start + i] & _SIGNLESS) != _U32(0))
        known += has
        unchanged += has & _I32(moved[BLOCK + i] == 0.0)
    return known, unchanged


@exact
def _aim(aims: F64s, start: int, size: int, scratch: I32s) -> I32:
    """Sign, exponent and kind of each intended update; returns how many are meant: neither zero nor not finite."""
    meant = _I32(0)
    for i in range(size):
        bits = _bits_of(aims[start + i])
        exponent = _I32((bits >> 52) & _EXPONENT)
        means = _I32(((bits << 1) != 0) & (exponent != _EXPONENT))
        scratch[_EXPONENTS + i] = exponent
        scratch[_SIGNS + i] = _I32(bits < 0)
        scratch[_KINDS + i] = _I32((bits << 12) == 0) * _I32(_POWER) + means * _I32(_MEANT)
        meant += means
    return meant


@exact
def _absorbed(size: int, scratch: I32s, fraction: int, infinity: int, gap: int) -> int:
    """How many of the updates that are meant the weights would not feel; as changes_host has it."""
    found = 0
    for i in range(size):
        held, kind = scratch[i], scratch[_KINDS + i]
        magnitude = held & _I32(0x7FFF)
        facing = magnitude - ((held >> 15) ^ scratch[_SIGNS + i])
        limit = max(facing >> _I32(fraction), _I32(1)) + _I32(gap)
        tie = kind & ~held & _I32(_POWER)
        within = _I32(scratch[_EXPONENTS + i] - tie < limit) | _I32(magnitude == infinity)
        found += within & _I32(magnitude <= infinity) & (kind >> 1)
    return found


def tally(
    rows: int,
    lengths: I64s,
    wide: int,
    before32: F32s,
    before64: F64s,
    after32: F32s,
    after64: F64s,
    gradient: U32s,
    aimed: int,
    aims: F64s,
    values: F64s,
    scratch: I32s,
    out: F64s,
) -> int:
    end = 0
    for row in range(rows):
        first, end = end, end + lengths[row]
        for start in range(first, end, BLOCK):
            size = min(BLOCK, end - start)
            _widen(wide, before32, before64, start, size, values, 0)
            _widen(wide, after32, after64, start, size, values, BLOCK)
            for i in range(size):
                values[BLOCK + i] -= values[i]
            out[row] += _squares(values, BLOCK, size)
            out[rows + row] += _squares(values, 0, size)
            known, unchanged = _of_gradient(gradient, start, size, values)
            out[2 * rows + row] += known
            out[3 * rows + row] += unchanged
            meant = _aim(aims, start, size, scratch) if aimed else _aim(values, BLOCK, size, scratch)
            out[4 * rows + row] += meant
            _hold_fp16(wide, before32, before64, start, size, scratch)
            out[5 * rows + row] += _absorbed(size, scratch, 10, 0x7C00, _BIAS - 26)
            _hold_bf16(wide, before32, before64, start, size, scratch)
            out[6 * rows + row] += _absorbed(size, scratch, 7, 0x7F80, _BIAS - 135)
    return rows
