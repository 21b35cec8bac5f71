"""The Triton kernels: every statistic of many tensors in one launch, and the one that looks only after an overflow.

A program takes one stretch of one tensor, tile by tile; which, is read from the table (see
:mod:`~scalescope.numerics.tables`), so a launch costs the same for any number of tensors, and a value is read once.

A histogram of 256 bins costs a warp far more than reading its values. So a tile is counted 31 octaves at a time, from
its largest value down, which nearly always takes one turn; a tile of zeros takes none. What it counted is added to the
tensor's row in memory: integers, so the order of programs changes nothing. Squares are added in fp32 within a tile,
scaled so that they stay in range, and in float64 across tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Words of a row of results: 256 fields, infinities, amax and squares (the bits of float64), one to keep it even.
ROW = tl.constexpr(260)
_INF, _AMAX, _SQUARES = tl.constexpr(256), tl.constexpr(257), tl.constexpr(258)
# In the order of tables.KINDS; what is none of these is float64.
_FP32, _BF16, _FP16 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)

_SIGNLESS, _INFINITE = tl.constexpr(0x7FFFFFFF), tl.constexpr(0x7F800000)
_SIGNLESS_64, _INFINITE_64 = tl.constexpr(0x7FFFFFFFFFFFFFFF), tl.constexpr(0x7FF0000000000000)
# 2**128, which fp32 cannot hold.
_BEYOND_64 = tl.constexpr(0x47F0000000000000)
# A bin for each lane of a warp: 20 instructions for a value, where 256 bins take 52.
_WINDOW = tl.constexpr(32)


@triton.jit
def _add_fields(fields, size, out):
    """Add the counts of the exponent ``fields`` to the row at ``out``. Zeros are those of ``size`` that are left."""
    near = tl.arange(0, _WINDOW)
    top = tl.max(fields, 0)
    while top > 0:
        base = tl.maximum(top - (_WINDOW - 1), 0)
        counts = tl.where(near > 0, tl.histogram(tl.maximum(fields - base, 0), _WINDOW), 0)
        tl.atomic_add(out + base + near, counts.to(tl.int64), mask=counts > 0)
        size -= tl.sum(counts, 0)
        fields = tl.where(fields > base, 0, fields)
        top = tl.max(fields, 0)
    tl.atomic_add(out, size.to(tl.int64))


@triton.jit
def _add_reduced(amax, squares, out):
    """Both float64, of finite values."""
    tl.atomic_max(out + _AMAX, amax.to(tl.int64, bitcast=True))
    tl.atomic_add((out + _SQUARES).to(tl.pointer_type(tl.float64), bitcast=True), squares)


@triton.jit
def _measure_32(values, size, out):
    """``values`` are ``size`` of them, then zeros."""
    bits = values.to(tl.int32, bitcast=True) & _SIGNLESS
    _add_fields(bits >> 23, size, out)
    top = tl.max(bits, 0)
    if top >= _INFINITE:
        tl.atomic_add(out + _INF, tl.sum((bits == _INFINITE).to(tl.int32), 0).to(tl.int64))
        bits = tl.where(bits < _INFINITE, bits, 0)
        top = tl.max(bits, 0)
    # Divided by the power of two of the largest magnitude, whose square is then below 16.
    field = tl.minimum(tl.maximum(top >> 23, 1), 253)
    small = bits.to(tl.float32, bitcast=True) * ((254 - field) << 23).to(tl.float32, bitcast=True)
    unit = ((2 * field.to(tl.int64) + (1023 - 254)) << 52).to(tl.float64, bitcast=True)
    squares = tl.sum(small * small, 0).to(tl.float64) * unit
    _add_reduced(top.to(tl.float32, bitcast=True).to(tl.float64), squares, out)


@triton.jit
def _measure_64(values, size, out):
    bits = values.to(tl.int64, bitcast=True) & _SIGNLESS_64
    fields = tl.minimum(tl.maximum((bits >> 52) - (1023 - 127), 0), 255)
    _add_fields(fields.to(tl.int32), size, out)
    if tl.max(bits, 0) >= _BEYOND_64:
        infinite = (bits >= _BEYOND_64) & (bits <= _INFINITE_64)
        tl.atomic_add(out + _INF, tl.sum(infinite.to(tl.int32), 0).to(tl.int64))
        bits = tl.where(bits < _INFINITE_64, bits, 0)
    finite = bits.to(tl.float64, bitcast=True)
    _add_reduced(tl.max(bits, 0).to(tl.float64, bitcast=True), tl.sum(finite * finite, 0), out)


@triton.jit
def _load(address, first, size, dtype: tl.constexpr, tile: tl.constexpr):
    """``size`` values from the index ``first`` on, then zeros."""
    place = tl.arange(0, tile)
    return tl.load(address.to(tl.pointer_type(dtype)) + first + place, mask=place < size, other=0)


@triton.jit
def _load_32(address, kind, first, size, tile: tl.constexpr):
    """As fp32, which holds the values of all three kinds."""
    if kind == _FP32:
        values = _load(address, first, size, tl.float32, tile)
    elif kind == _BF16:
        # The upper half of the bits of fp32.
        values = (_load(address, first, size, tl.int16, tile).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        values = _load(address, first, size, tl.float16, tile).to(tl.float32)
    return values


@triton.jit
def _stretch(table, rows, programs):
    """What this program takes: the row, its address and kind, the first index, and how many values are left from it."""
    program = tl.program_id(0)
    row = tl.load(table + 3 * rows + program)
    first = tl.load(table + 3 * rows + programs + program)
    left = tl.load(table + rows + row) - first
    return row, tl.load(table + row), tl.load(table + 2 * rows + row), first, left


@triton.jit(do_not_specialize=["table", "rows", "programs", "tiles", "factor", "out"])
def measure(table, rows, programs, tiles, factor, out, tile: tl.constexpr):
    """Add every statistic of the tensors of ``table``, times ``factor``, to ``out``: int64 [rows, ROW].

    One program for each of ``programs`` stretches of ``tiles`` tiles.
    """
    row, address, kind, first, left = _stretch(table, rows, programs)
    for _ in range(tiles):
        if left > 0:
            size = tl.minimum(left, tile).to(tl.int32)
            if kind <= _FP16:
                _measure_32(_load_32(address, kind, first, size, tile) * factor, size, out + row * ROW)
            else:
                _measure_64(_load(address, first, size, tl.float64, tile) * factor, size, out + row * ROW)
        first += tile
        left -= tile


@triton.jit
def _nonfinite(address, kind, first, size, tile: tl.constexpr):
    if kind <= _FP16:
        bits = _load_32(address, kind, first, size, tile).to(tl.int32, bitcast=True) & _SIGNLESS
        found = tl.sum((bits >= _INFINITE).to(tl.int32), 0)
    else:
        wide = _load(address, first, size, tl.float64, tile).to(tl.int64, bitcast=True) & _SIGNLESS_64
        found = tl.sum((wide >= _INFINITE_64).to(tl.int32), 0)
    return found


@triton.jit(do_not_specialize=["found_inf", "table", "rows", "programs", "tiles", "out"])
def count_if(
    found_inf,
    table,
    rows,
    programs,
    tiles,
    out,
    tile: tl.constexpr,
):
    """Where ``found_inf`` is above 0, add how many values of each tensor are not finite to ``out``: int64 [1 + rows].

    The first word becomes 1 then; else no tensor is read, and nothing is written.
    """
    if tl.load(found_inf) > 0:
        tl.store(out, 1)
        row, address, kind, first, left = _stretch(table, rows, programs)
        for _ in range(tiles):
            if left > 0:
                found = _nonfinite(address, kind, first, tl.minimum(left, tile).to(tl.int32), tile)
                if found > 0:
                    tl.atomic_add(out + 1 + row, found.to(tl.int64))
            first += tile
            left -= tile
