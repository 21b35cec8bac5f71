"""Measuring on the CPU with torch alone: the way that always works.

Large tensors are measured in chunks, which bounds the scratch; small ones, of which a model has many, are laid end to
end and counted together, since a call costs more than their values do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from scalescope.numerics.fields import FIELDS, fields_into

# 512 Ki elements: the scratch is 2.5 MB. Smaller chunks stay in the cache, and cost more in calls than that saves.
_CHUNK = 1 << 19
# Below this a tensor's calls (60 us) cost more than its values.
_SMALL = 1 << 14
# Squares are added in fp32 within blocks this long (in many lanes) and in float64 across them: relative error
# below 2e-5 (1e-7 on random data) where one fp32 sum over millions is off by 1e-4.
_BLOCK = 1 << 16
# Outside this range of magnitudes a square leaves fp32, so the sum is taken in float64 from the start.
_SAFE_AMAX = (1e-12, 1e15)


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


def measure(values: Sequence[torch.Tensor], factor: float) -> Raw:
    """Every statistic of ``values`` times ``factor``: flat CPU tensors of fp32, bf16, fp16 or float64, one row each."""
    raw = Raw.zeros(len(values))
    small = [row for row, found in enumerate(values) if _is_small(found)]
    _count_together(raw, small, [prepared(values[row], factor) for row in small])
    together = set(small)
    large = [row for row, found in enumerate(values) if row not in together and found.numel()]
    longest = min(max((values[row].numel() for row in large), default=0), _CHUNK)
    # The device is named: the training may have made another one the default.
    wide = torch.empty(longest, dtype=torch.int32, device="cpu")
    narrow = torch.empty(longest, dtype=torch.uint8, device="cpu")
    for row in large:
        for part in values[row].split(_CHUNK):
            chunk = prepared(part, factor)
            fields = torch.bincount(fields_into(chunk, wide, narrow), minlength=FIELDS).numpy()
            raw.fields[row] += fields
            _reduce(raw, row, chunk, finite=not fields[FIELDS - 1])
    return raw


def prepared(values: torch.Tensor, factor: float) -> torch.Tensor:
    """``values`` times ``factor``, in fp32, bf16 or float64: fp16 has another exponent field, so it is widened."""
    wide = values.float() if values.dtype == torch.float16 else values
    return wide if factor == 1.0 else wide.mul(factor)


def _is_small(values: torch.Tensor) -> bool:
    return values.dtype == torch.float32 and 0 < values.numel() <= _SMALL


def _count_together(raw: Raw, rows: list[int], values: list[torch.Tensor]) -> None:
    if not rows:
        return
    joined = torch.cat(values)
    row_of = np.repeat(np.arange(len(rows), dtype=np.int64) * FIELDS, [found.numel() for found in values])
    fields = (joined.view(torch.int32) >> 23) & (FIELDS - 1)
    counted = torch.bincount(fields + torch.from_numpy(row_of), minlength=len(rows) * FIELDS)
    raw.fields[rows] = counted.numpy().reshape(-1, FIELDS)
    raw.amax[rows] = torch.stack(torch._foreach_norm(values, math.inf)).numpy()
    raw.squares[rows] = torch.stack(torch._foreach_norm(values)).double().square_().numpy()
    for row, found in zip(rows, values, strict=True):
        # A norm over non-finite values, or one whose squares left fp32, says nothing.
        finite = not raw.fields[row, FIELDS - 1]
        if not finite or not _SAFE_AMAX[0] < raw.amax[row] < _SAFE_AMAX[1]:
            raw.amax[row] = raw.squares[row] = 0.0
            _reduce(raw, row, found, finite=finite)


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
