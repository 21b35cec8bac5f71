"""Measuring on the CPU with torch alone: the way that always works.

Large tensors are measured in chunks, which bounds the scratch; small ones, of which a model has many, are laid end to
end and counted together, since a call costs more than their values do.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from scalescope.numerics.fields import FIELDS, fields_into

# 512 Ki elements: the scratch is 2.5 MB. Smaller chunks stay in the cache, and cost more in calls than that saves.
_CHUNK = 1 << 19
# Below this a tensor's calls (60 us) cost more than its values; so many are counted together, in memory that is kept.
_SMALL, _TOGETHER = 1 << 14, 1 << 15
# Squares are added in fp32 within blocks this long (in as many lanes as the machine's library has) and in float64
# across them: relative error below 2e-5 (1e-7 on random data) where one fp32 sum over millions is off by 1e-4. Blocks
# four times as long are off by up to 5e-5 where it has few lanes.
_BLOCK = 1 << 14
# Outside this range of magnitudes a square leaves fp32, so the sum is taken in float64 from the start.
_SAFE_AMAX = (1e-12, 1e15)
_SIGNLESS, _FRACTION_BITS = 0x7FFFFFFF, 23


@dataclass(frozen=True, slots=True, eq=False)
class Raw:
    """int64 [rows, 256] fields, int64 [rows] infinities (part of field 255), float64 [rows] amax and squares."""

    fields: NDArray[np.int64]
    inf: NDArray[np.int64]
    amax: NDArray[np.float64]
    squares: NDArray[np.float64]

    @staticmethod
    def zeros(rows: int) -> Raw:
        return Raw(
            np.zeros((rows, FIELDS), np.int64), np.zeros(rows, np.int64), np.zeros(rows, np.float64), np.zeros(rows)
        )

    def put(self, rows: Sequence[int], other: Raw) -> None:
        """Make the rows of ``other`` those of this one that are named."""
        self.fields[rows], self.inf[rows] = other.fields, other.inf
        self.amax[rows], self.squares[rows] = other.amax, other.squares


class _Scratch(threading.local):
    """Of each thread that measures."""

    def __init__(self) -> None:
        self.words = np.empty((2, _TOGETHER), np.int32)


_SCRATCH = _Scratch()


def measure(values: Sequence[torch.Tensor], factor: float) -> Raw:
    """Every statistic of ``values`` times ``factor``: flat CPU tensors of fp32, bf16, fp16 or float64, one row each."""
    raw = Raw.zeros(len(values))
    small = [row for row, found in enumerate(values) if _is_small(found)]
    for rows in _groups(small, values):
        # What is not finite is no error here, whatever the training has set for its own.
        with np.errstate(all="ignore"):
            _count_together(raw, rows, [values[row] for row in rows], factor)
    together = set(small)
    large = [row for row, found in enumerate(values) if row not in together and found.numel()]
    if large:
        _count_apart(raw, large, values, factor)
    return raw


def prepared(values: torch.Tensor, factor: float) -> torch.Tensor:
    """``values`` times ``factor``, in fp32, bf16 or float64: fp16 has another exponent field, so it is widened."""
    wide = values.float() if values.dtype == torch.float16 else values
    return wide if factor == 1.0 else wide.mul(factor)


def _is_small(values: torch.Tensor) -> bool:
    return values.dtype != torch.float64 and 0 < values.numel() <= _SMALL


def _groups(rows: Sequence[int], values: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """``rows`` in their order, as many at once as the scratch holds."""
    group: list[int] = []
    held = 0
    for row in rows:
        size = values[row].numel()
        if held + size > _TOGETHER:
            yield group
            group, held = [], 0
        group.append(row)
        held += size
    if group:
        yield group


def _count_together(raw: Raw, rows: list[int], values: list[torch.Tensor], factor: float) -> None:
    joined = torch.cat(values).float()
    if factor != 1.0:
        joined.mul_(factor)
    wide, magnitudes, fields = joined.numpy(), *(part[: len(joined)] for part in _SCRATCH.words)
    lengths = [found.numel() for found in values]
    starts = list(itertools.accumulate(lengths[:-1], initial=0))
    np.bitwise_and(wide.view(np.int32), _SIGNLESS, out=magnitudes)
    largest = np.maximum.reduceat(magnitudes, starts)
    np.right_shift(magnitudes, _FRACTION_BITS, out=fields)
    np.add(fields, np.repeat(np.arange(len(rows), dtype=np.int32) * FIELDS, lengths), out=fields)
    counted = torch.bincount(torch.from_numpy(fields), minlength=len(rows) * FIELDS)
    raw.fields[rows] = counted.numpy().reshape(-1, FIELDS)
    raw.amax[rows] = largest.view(np.float32)
    # NumPy adds pairwise, so that fp32 does.
    raw.squares[rows] = np.add.reduceat(np.square(wide, out=magnitudes.view(np.float32)), starts)
    for place in np.flatnonzero(~_is_safe(raw.amax[rows])).tolist():
        # A maximum over non-finite values, or a sum of squares that left fp32, says nothing.
        row, start = rows[place], starts[place]
        raw.amax[row] = raw.squares[row] = 0.0
        finite = not raw.fields[row, FIELDS - 1]
        _reduce(raw, row, joined[start : start + lengths[place]], finite=finite)


def _is_safe(amax: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Where squares stay in fp32; NaN is not."""
    low, high = _SAFE_AMAX
    found: NDArray[np.bool_] = ((amax > low) & (amax < high)) | (amax == 0.0)
    return found


def _count_apart(raw: Raw, rows: Sequence[int], values: Sequence[torch.Tensor], factor: float) -> None:
    longest = min(max(values[row].numel() for row in rows), _CHUNK)
    # The device is named: the training may have made another one the default.
    wide = torch.empty(longest, dtype=torch.int32, device="cpu")
    narrow = torch.empty(longest, dtype=torch.uint8, device="cpu")
    for row in rows:
        for part in values[row].split(_CHUNK):
            chunk = prepared(part, factor)
            fields = torch.bincount(fields_into(chunk, wide, narrow), minlength=FIELDS).numpy()
            raw.fields[row] += fields
            _reduce(raw, row, chunk, finite=not fields[FIELDS - 1])


def _reduce(raw: Raw, row: int, values: torch.Tensor, *, finite: bool) -> None:
    """Take into the row what the fields do not tell."""
    kept = values
    if not finite:
        raw.inf[row] += _infinite(values)
        kept = torch.where(values.isfinite(), values, values.new_zeros(()))
    low, high = torch.aminmax(kept)
    amax = max(-float(low), float(high))
    raw.amax[row] = max(raw.amax[row], amax)
    raw.squares[row] += _sum_squares(kept, amax)


def _infinite(values: torch.Tensor) -> int:
    """Infinite in fp32: neither NaN nor below 2**128."""
    in_range = torch.count_nonzero(values.abs() < 2.0**128)
    return values.numel() - int(torch.count_nonzero(values.isnan())) - int(in_range)


def _sum_squares(finite: torch.Tensor, largest: float) -> float:
    if finite.dtype == torch.float64 or not _SAFE_AMAX[0] < largest < _SAFE_AMAX[1]:
        return float(finite.double().square().sum()) if largest else 0.0
    return math.fsum(float(torch.dot(block, block)) for block in finite.float().split(_BLOCK))
