"""The fast way to measure on the CPU: the kernel as numba compiles it.

A block of values at a time stays in the core's first cache, so that the passes after the first cost no memory: one
takes the exponent fields and the largest magnitude, one the squares, in float64, both in vector registers; one counts
the fields. Four tables take turns, because a counter that was just written is slow to read again.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numba import types

from scalescope.numerics.compiled import summing

BLOCK = 4096
TABLES = 4
# Kinds of values, in the order of machine_code.KINDS; what is neither is fp16.
_FP32, _BF16 = 0, 1

_U32 = np.uint32
_SIGNLESS, _INFINITE = _U32(0x7FFFFFFF), _U32(0x7F800000)
_SMALLEST_NORMAL = _U32(0x00800000)

_Pointer = types.CPointer
SIGNATURE = types.int64(
    types.int64,  # rows
    _Pointer(_Pointer(types.uint32)),  # the values of each row, by its kind read as this or as the next
    _Pointer(_Pointer(types.uint16)),
    _Pointer(types.int64),  # [rows] how many values
    _Pointer(types.int64),  # [rows] kinds
    types.float32,  # factor
    _Pointer(types.uint32),  # scratch [BLOCK]
    _Pointer(types.uint8),  # scratch [BLOCK]
    _Pointer(types.uint32),  # scratch [TABLES * 256], zeros
    _Pointer(types.int64),  # out [rows, 256] fields, zeros
    _Pointer(types.int64),  # out [rows] infinities
    _Pointer(types.float64),  # out [rows] largest finite magnitude
    _Pointer(types.float64),  # out [rows] sum of squares of the finite values
)

# What numba reads from the signature above: pointers to values of that type, and one value.
U32s: TypeAlias = Any
U16s: TypeAlias = Any
U8s: TypeAlias = Any
I64s: TypeAlias = Any
F64s: TypeAlias = Any
Pointers: TypeAlias = Any
U32: TypeAlias = Any
F32: TypeAlias = Any


@summing
def _value_of(bits: U32) -> F32:
    return np.uint32(bits).view(np.float32)


@summing
def _bits_of(value: F32) -> U32:
    return np.float32(value).view(np.uint32)


@summing
def _fields(bits: U32s, start: int, size: int, fields: U8s) -> U32:
    """The exponent field of each value; returns the bits of the largest magnitude, or of some NaN."""
    top = _U32(0)
    for i in range(size):
        value = bits[start + i]
        fields[i] = np.uint8(value >> 23)
        magnitude = _U32(value & _SIGNLESS)
        if magnitude > top:
            top = magnitude
    return top


@summing
def _squares(bits: U32s, start: int, size: int) -> float:
    total = 0.0
    for i in range(start, start + size):
        value = np.float64(_value_of(bits[i]))
        total += value * value
    return total


@summing
def _finite(bits: U32s, start: int, size: int) -> tuple[U32, float, int]:
    """Of a block that holds some that are not: bits of the largest finite magnitude, squares, infinities."""
    top, total, infinite = _U32(0), 0.0, 0
    for i in range(start, start + size):
        magnitude = _U32(bits[i] & _SIGNLESS)
        if magnitude < _INFINITE:
            value = np.float64(_value_of(magnitude))
            total += value * value
            top = max(top, magnitude)
        elif magnitude == _INFINITE:
            infinite += 1
    return top, total, infinite


@summing
def _count(fields: U8s, size: int, tables: U32s) -> None:
    even = size - size % TABLES
    for i in range(0, even, TABLES):
        tables[fields[i]] += _U32(1)
        tables[256 + np.int64(fields[i + 1])] += _U32(1)
        tables[512 + np.int64(fields[i + 2])] += _U32(1)
        tables[768 + np.int64(fields[i + 3])] += _U32(1)
    for i in range(even, size):
        tables[fields[i]] += _U32(1)


@summing
def _empty_into(tables: U32s, counts: I64s, row: int) -> None:
    for field in range(256):
        for table in range(TABLES):
            counts[256 * row + field] += np.int64(tables[256 * table + field])
            tables[256 * table + field] = _U32(0)


@summing
def _widen_bf16(halves: U16s, start: int, size: int, block: U32s) -> None:
    for i in range(size):
        block[i] = _U32(_U32(halves[start + i]) << 16)


@summing
def _widen_fp16(halves: U16s, start: int, size: int, block: U32s) -> None:
    """Without the sign, and without arithmetic on subnormals, which the training may have switched off."""
    for i in range(size):
        half = _U32(halves[start + i] & 0x7FFF)
        normal = _U32((half << 13) + (112 << 23))
        subnormal = _bits_of(np.float32(half) * np.float32(2.0**-24))
        infinite = _U32((half << 13) | _INFINITE)
        block[i] = subnormal if half < 0x400 else (normal if half < 0x7C00 else infinite)


@summing
def _multiply(bits: U32s, start: int, size: int, factor: F32, block: U32s) -> None:
    for i in range(size):
        block[i] = _bits_of(_value_of(bits[start + i]) * factor)


@summing
def _block(words: U32s, halves: U16s, kind: int, start: int, size: int, factor: F32, block: U32s) -> tuple[U32s, int]:
    """Where the values of a block are as fp32, times the factor, and from which index on."""
    if kind == _FP32:
        if factor == np.float32(1.0):
            return words, start
        _multiply(words, start, size, factor, block)
        return block, 0
    if kind == _BF16:
        _widen_bf16(halves, start, size, block)
    else:
        _widen_fp16(halves, start, size, block)
    if factor != np.float32(1.0):
        _multiply(block, 0, size, factor, block)
    return block, 0


@summing
def _row(
    words: U32s, halves: U16s, length: int, kind: int, factor: F32, block: U32s, fields: U8s, tables: U32s
) -> tuple[int, int, U32, float]:
    """Counts into ``tables``; returns zeros counted without them, infinities, largest magnitude, squares."""
    zeros, infinite, top, total = 0, 0, _U32(0), 0.0
    for start in range(0, length, BLOCK):
        size = min(BLOCK, length - start)
        bits, first = _block(words, halves, kind, start, size, factor, block)
        largest = _fields(bits, first, size, fields)
        if largest < _SMALLEST_NORMAL:
            # Rows of an embedding that no token asked for: most of the largest tensor.
            zeros += size
        else:
            _count(fields, size, tables)
        if largest < _INFINITE:
            squares = _squares(bits, first, size)
        else:
            largest, squares, found = _finite(bits, first, size)
            infinite += found
        top = max(top, largest)
        total += squares
    return zeros, infinite, top, total


def measure(
    rows: int,
    words: Pointers,
    halves: Pointers,
    lengths: I64s,
    kinds: I64s,
    factor: F32,
    block: U32s,
    fields: U8s,
    tables: U32s,
    counts: I64s,
    infinite: I64s,
    amax: F64s,
    squares: F64s,
) -> int:
    for row in range(rows):
        found = _row(words[row], halves[row], lengths[row], kinds[row], factor, block, fields, tables)
        _empty_into(tables, counts, row)
        counts[256 * row] += found[0]
        infinite[row] = found[1]
        amax[row] = np.float64(_value_of(found[2]))
        squares[row] = found[3]
    return rows
