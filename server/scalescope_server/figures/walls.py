"""The two walls of a loss scale: where sampled gradients would overflow, and where they would vanish.

A gradient measured at scale S keeps its place when S moves: at S' every exponent shifts by log2(S'/S). So one
sample answers for all scales. Overflow is sharp, one value is enough: the wall is ``65520 * S / amax``.
Flushing is gradual: its wall is the scale below which more than ``FLUSH_LIMIT`` of the non-zero values vanish.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scalescope.numerics.exponents import MIN_EXPONENT, Histograms
from scalescope.numerics.formats import FORMATS, FP16, FloatFormat
from scalescope.numerics.measures import Part

from scalescope_server.store.records import ParameterRow, SampleBucket

# One value in a thousand is well below what training notices, and far above the noise of single values.
FLUSH_LIMIT = 1e-3


@dataclass(frozen=True, slots=True)
class Walls:
    """Both walls as log2 of a scale, at one update; None where the sample cannot say.

    ``overflow_row`` and ``flush_row`` are the parameters that set them (rows of the sample).
    """

    step: int
    overflow: float | None
    overflow_row: int | None
    flush: float | None
    flush_row: int | None


def compute_format(row: ParameterRow) -> FloatFormat:
    """The format a parameter's gradient is computed in; fp16 is assumed until it is known."""
    return FORMATS.get(row.compute_format or "", FP16)


def octaves(scale: float | None) -> float | None:
    """log2 of a loss scale; None for no scale and for one that is zero or not finite, where nothing shifts."""
    return math.log2(scale) if scale is not None and scale > 0 and math.isfinite(scale) else None


def walls(bucket: SampleBucket) -> Walls:
    """The walls by one bucket, whose rows should be those computed in fp16: a loss scale is for no others."""
    table, level = bucket.table, octaves(bucket.scale)
    amax = float(table.amax.max(initial=0.0))
    if level is None or amax == 0:
        return Walls(bucket.step, None, None, None, None)
    return Walls(
        step=bucket.step,
        overflow=math.log2(FP16.overflow_from / amax) + level,
        overflow_row=int(table.amax.argmax()),
        flush=flush_wall(table.total(), level),
        flush_row=_first_to_flush(table),
    )


def flush_wall(total: Histograms, level: float) -> float | None:
    """log2 of the lowest scale at which at most ``FLUSH_LIMIT`` of the non-zero values flush to zero.

    Args:
        total: one row, measured at the scale ``2 ** level``.

    Returns:
        A whole number of octaves from ``level`` (the edges are bin edges), None if all values are zero.
    """
    nonzero = int(total.nonzero[0])
    if not nonzero:
        return None
    # Values below 2**edge flush once the scale has moved down by edge - flush_exponent octaves.
    below = np.concatenate([[0], np.cumsum(total.counts[0])])
    edge = int(np.searchsorted(below, FLUSH_LIMIT * nonzero, side="right")) - 1 + MIN_EXPONENT
    return level + FP16.flush_exponent - edge


def as_parts(buckets: Sequence[SampleBucket]) -> list[Part]:
    return [Part(b.table, b.scale, b.samples, b.periodic) for b in buckets]


def _first_to_flush(table: Histograms) -> int:
    """The row with most values among the smallest ``FLUSH_LIMIT`` of all."""
    below = np.cumsum(table.counts.sum(axis=0))
    edge = int(np.searchsorted(below, FLUSH_LIMIT * below[-1], side="right"))
    return int(table.counts[:, : edge + 1].sum(axis=1).argmax())
