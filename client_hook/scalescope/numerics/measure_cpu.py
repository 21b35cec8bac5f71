"""Measuring on the CPU: one pass of integers for the histogram, one for amax, one for the squares.

Large tensors are counted in chunks that stay in a core's cache; small ones, of which a model has many, are
laid end to end and counted together, since a call costs more than their values do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from scalescope.numerics.fields import FIELDS, fields_into

# 256 Ki elements: the scratch (1.3 MB) stays in the cache, the calls' fixed cost is below 2 %.
_CHUNK = 1 << 18
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


def measure(values: Sequence[torch.Tensor], factor: float) -> Raw:
    """Every statistic of ``values`` times ``factor``: flat CPU tensors of fp32, bf16 or float64, one row each."""
    raw = Raw.zeros(len(values))
    small = [row for row, found in enumerate(values) if _is_small(found)]
    _count_together(raw, small, [_times(values[row], factor) for row in small])
    together = set(small)
    large = [row for row, found in enumerate(values) if row not in together and found.numel()]
    longest = min(max((values[row].numel() for row in large), default=0), _CHUNK)
    # The device is named: the training may have made another one the default.
    wide = torch.empty(longest, dtype=torch.int32, device="cpu")
    narrow = torch.empty(longest, dtype=torch.uint8, device="cpu")
    for row in large:
        found = _times(values[row], factor)
        for part in found.split(_CHUNK):
            raw.fields[row] += torch.bincount(fields_into(part, wide, narrow), minlength=FIELDS).numpy()
        _reduce(raw, row, found)
    return raw


def _times(values: torch.Tensor, factor: float) -> torch.Tensor:
    return values if factor == 1.0 else values.mul(factor)


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
        if raw.fields[row, FIELDS - 1] or not _SAFE_AMAX[0] < raw.amax[row] < _SAFE_AMAX[1]:
            _reduce(raw, row, found)


def _reduce(raw: Raw, row: int, values: torch.Tensor) -> None:
    finite = values
    if raw.fields[row, FIELDS - 1]:
        raw.inf[row] = _infinite(values)
        finite = torch.where(values.isfinite(), values, values.new_zeros(()))
    low, high = torch.aminmax(finite)
    raw.amax[row] = max(-float(low), float(high))
    raw.squares[row] = _sum_squares(finite, raw.amax[row])


def _infinite(values: torch.Tensor) -> int:
    """Infinite in fp32: neither NaN nor below 2**128."""
    in_range = torch.count_nonzero(values.abs() < 2.0**128)
    return values.numel() - int(torch.count_nonzero(values.isnan())) - int(in_range)


def _sum_squares(finite: torch.Tensor, largest: float) -> float:
    if finite.dtype == torch.float64 or not _SAFE_AMAX[0] < largest < _SAFE_AMAX[1]:
        return float(finite.double().square().sum()) if largest else 0.0
    return math.fsum(float(torch.dot(block, block)) for block in finite.float().split(_BLOCK))
