"""Named measures of gradients, per parameter, from exponent histograms: what heat maps and series show.

A measure is asked of several tables at once, because a bucket of time may hold samples taken at different
scales, whose bins mean different things. Counts are therefore compared with the format's edges table by
table, each at its own scale, and only then added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Literal

import numpy as np

from scalescope.numerics.exponents import Counts, Histograms, Values, energy_below, flushed, subnormal
from scalescope.numerics.formats import FP16, FloatFormat

MeasureName = Literal[
    "zero_share",
    "subnormal_share",
    "flush_share",
    "subnormal_energy",
    "flush_energy",
    "nonfinite",
    "amax",
    "norm",
]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Samples of one bucket at one scale: rows are parameters.

    ``samples`` int64 [rows] says how many samples each row holds, ``periodic`` whether they were taken by the
    clock. Samples taken because something went wrong would bias an average, so shares and norms use them only
    for rows that have no other.
    """

    table: Histograms
    scale: float | None
    samples: Counts
    periodic: bool


def evaluate(name: MeasureName, parts: Sequence[Part], formats: Sequence[FloatFormat | None]) -> Values:
    """float64 [rows]: the measure over all ``parts``, NaN for a row without samples (or without elements).

    Args:
        name: zero_share (zeros / numel); subnormal_share (below the smallest normal of the row's compute
            format, as it stood scaled, / numel); flush_share (lower bound of what a cast to fp16 at its own
            scale would flush / non-zeros); subnormal_energy and flush_energy (upper bound of what the same values
            have of the sum of squares); nonfinite (inf + NaN, a count); amax (largest finite magnitude
            divided by the scale); norm (root mean square over the samples of the L2 norm divided by the scale).
        parts: at least one, all with the same rows.
        formats: the compute format of each row; None where it is not known, whose subnormals are not either.
    """
    return _MEASURES[name](parts, formats)


def divided(part: Values, whole: Values) -> Values:
    """float64 [rows]: ``part / whole``, NaN where ``whole`` is not above zero or the quotient is not known."""
    # Sums may be infinite, and so may their quotients: that is told in the answer, and not by numpy on stderr.
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0))


def _zero_share(parts: Sequence[Part], _: Sequence[FloatFormat | None]) -> Values:
    return _share(parts, lambda table: table.zero, lambda table: table.numel)


def _subnormal_share(parts: Sequence[Part], formats: Sequence[FloatFormat | None]) -> Values:
    shares = _share(parts, lambda table: _by_format(table, formats, subnormal), lambda table: table.numel)
    return np.where([found is None for found in formats], np.nan, shares)


def _flush_share(parts: Sequence[Part], _: Sequence[FloatFormat | None]) -> Values:
    return _share(parts, lambda table: flushed(table, FP16)[0], lambda table: table.nonzero)


def _subnormal_energy(parts: Sequence[Part], formats: Sequence[FloatFormat | None]) -> Values:
    shares = _energy(parts, lambda table: _by_format(table, formats, _energy_of_subnormals))
    return np.where([found is None for found in formats], np.nan, shares)


def _flush_energy(parts: Sequence[Part], _: Sequence[FloatFormat | None]) -> Values:
    return _energy(parts, lambda table: energy_below(table, FP16.flush_exponent)[1])


def _energy(parts: Sequence[Part], share: Callable[[Histograms], Values]) -> Values:
    """Of the squares divided by those of the scale: else the samples at the highest scale would decide alone."""
    # The squares of a float64 tensor may leave float64; then the share is not known.
    with np.errstate(over="ignore", invalid="ignore"):
        below = _weighted(parts, lambda part: share(part.table) * _squares(part))
        return divided(below, _weighted(parts, _squares))


def _squares(part: Part) -> Values:
    return part.table.sum_squares / _divisor(part.scale) ** 2


def _nonfinite(parts: Sequence[Part], _: Sequence[FloatFormat | None]) -> Values:
    count = np.sum([part.table.nonfinite for part in parts], axis=0)
    return np.where(_sampled(parts), count.astype(np.float64), np.nan)


def _amax(parts: Sequence[Part], _: Sequence[FloatFormat | None]) -> Values:
    largest = np.max([part.table.amax / _divisor(part.scale) for part in parts], axis=0)
    return np.where(_sampled(parts), largest, np.nan)


def _norm(parts: Sequence[Part], _: Sequence[FloatFormat | None]) -> Values:
    squares = _weighted(parts, _squares)
    samples = _weighted(parts, lambda part: part.samples)
    return np.sqrt(divided(squares, samples))


_MEASURES: dict[MeasureName, Callable[[Sequence[Part], Sequence[FloatFormat | None]], Values]] = {
    "zero_share": _zero_share,
    "subnormal_share": _subnormal_share,
    "flush_share": _flush_share,
    "subnormal_energy": _subnormal_energy,
    "flush_energy": _flush_energy,
    "nonfinite": _nonfinite,
    "amax": _amax,
    "norm": _norm,
}


def _share(
    parts: Sequence[Part], count: Callable[[Histograms], Counts | Values], whole: Callable[[Histograms], Counts]
) -> Values:
    return divided(_weighted(parts, lambda p: count(p.table)), _weighted(parts, lambda p: whole(p.table)))


def _weighted(parts: Sequence[Part], value: Callable[[Part], Counts | Values]) -> Values:
    """float64 [rows]: the sum over periodic parts, or over all where a row has no periodic sample."""
    values = [value(part) for part in parts]
    total = np.asarray(np.sum(values, axis=0), np.float64)
    periodic = [part.periodic for part in parts]
    if not any(periodic):
        return total
    by_clock = np.sum(list(compress(values, periodic)), axis=0)
    has_periodic = np.sum([part.samples for part in compress(parts, periodic)], axis=0) > 0
    return np.where(has_periodic, by_clock, total)


def _sampled(parts: Sequence[Part]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.asarray(np.sum([part.samples for part in parts], axis=0) > 0)


def _by_format(
    table: Histograms, formats: Sequence[FloatFormat | None], read: Callable[[Histograms, FloatFormat], Counts | Values]
) -> Values:
    """float64 [rows]: each row read in its own format, 0 where that is not known."""
    found = np.zeros(table.rows)
    for target in set(formats) - {None}:
        assert target is not None
        rows = np.flatnonzero([of_row is target for of_row in formats])
        found[rows] = read(table.take(rows), target)
    return found


def _energy_of_subnormals(table: Histograms, target: FloatFormat) -> Values:
    # The smallest normal value itself is none of them.
    return energy_below(table, math.nextafter(target.min_normal_exponent, -math.inf))[1]


def _divisor(scale: float | None) -> float:
    """What undoes the scale; a scale of 0 leaves nothing to undo, its gradients are zero."""
    return scale or 1.0
