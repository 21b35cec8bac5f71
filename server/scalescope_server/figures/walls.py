"""The two walls of a loss scale: where sampled gradients would overflow, and where they would vanish.

A gradient measured at scale S keeps its place when S moves: at S' every exponent shifts by log2(S'/S). So one
sample answers for all scales. Overflow is sharp, one value is enough: the wall is ``65520 * S / amax``, and no
higher than S itself where a value overflowed already and is infinite or NaN.
Flushing is gradual: its wall is the scale below which more than ``FLUSH_LIMIT`` of the non-zero values vanish.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.formats import FP16, FloatFormat, known_format
from scalescope.numerics.measures import Part
from scalescope.packing import Trimmed

from scalescope_server.store.records import ParameterRow, SampleBucket

# One value in a thousand is well below what training notices, and far above the noise of single values.
FLUSH_LIMIT = 1e-3
_NOWHERE = np.zeros(0, np.float64)


@dataclass(frozen=True, slots=True)
class Walls:
    """Both walls as log2 of a scale, at one update; None where the sample cannot say.

    ``overflow_row`` and ``flush_row`` are the parameters that set them (rows of the sample). ``reached``: a value
    had overflowed, so the overflow wall is below ``overflow``.
    """

    step: int
    overflow: float | None
    overflow_row: int | None
    flush: float | None
    flush_row: int | None
    reached: bool = False


def compute_format(row: ParameterRow) -> FloatFormat | None:
    """The format a parameter's gradient is computed in; None until it is known, and for one we know no limits of."""
    return known_format(row.compute_format)


def octaves(scale: float | None) -> float | None:
    """log2 of a loss scale; None for no scale and for one that is zero or not finite, where nothing shifts."""
    return math.log2(scale) if scale is not None and scale > 0 and math.isfinite(scale) else None


def walls(bucket: SampleBucket) -> Walls:
    """The walls by one bucket, whose rows should be those computed in fp16: a loss scale is for no others.

    Of rows that overflowed alike the first counts. Only a periodic bucket tells the flush wall: a step that was
    skipped is no usual one.
    """
    table, level = bucket.trimmed, octaves(bucket.scale)
    overflow = _overflow_walls(table, level) if level is not None else _NOWHERE
    lowest = float(overflow.min(initial=math.inf))
    if level is None or lowest == math.inf:
        return Walls(bucket.step, None, None, None, None)
    row = int(overflow.argmin())
    spread = table.counts.sum(axis=0)
    flush = flush_wall(spread, table.low, level) if bucket.periodic else None
    return Walls(
        step=bucket.step,
        overflow=lowest,
        overflow_row=row,
        flush=flush,
        flush_row=None if flush is None else _first_to_flush(table, spread),
        reached=bool(table.nonfinite[row]),
    )


def flush_wall(spread: NDArray[np.integer], low: int, level: float) -> float | None:
    """log2 of the lowest scale at which at most ``FLUSH_LIMIT`` of the non-zero values flush to zero.

    Args:
        spread: [bins], values by their exponent from ``low`` on, measured at the scale ``2 ** level``.

    Returns:
        A whole number of octaves from ``level`` (the edges are bin edges), None if all values are zero.
    """
    below = np.cumsum(spread)
    if not spread.any():
        return None
    # Values below 2**edge flush once the scale has moved down by edge - flush_exponent octaves.
    edge = int(np.searchsorted(below, FLUSH_LIMIT * below[-1], side="right")) + low
    return level + FP16.flush_exponent - edge


def as_parts(buckets: Sequence[SampleBucket]) -> list[Part]:
    return [Part(b.table, b.scale, b.samples, b.periodic) for b in buckets]


def _overflow_walls(table: Trimmed, level: float) -> NDArray[np.float64]:
    """log2 of the scale from which each row overflows, infinity for a row of zeros."""
    with np.errstate(divide="ignore"):
        wall = math.log2(FP16.overflow_from) + level - np.log2(table.amax)
    return np.asarray(np.where(table.nonfinite > 0, np.minimum(wall, level), wall))


def _first_to_flush(table: Trimmed, spread: NDArray[np.integer]) -> int:
    """The row with most values among the smallest ``FLUSH_LIMIT`` of all, of which ``spread`` are by exponent."""
    below = np.cumsum(spread)
    edge = int(np.searchsorted(below, FLUSH_LIMIT * below[-1], side="right"))
    return int(table.counts[:, : edge + 1].sum(axis=1).argmax())
