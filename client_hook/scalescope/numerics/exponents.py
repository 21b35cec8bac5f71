"""Exponent histograms: how many values lie in each power of two.

The histogram of a tensor counts, for every exponent ``e`` from -126 to 127, the values with
``2**e <= abs(x) < 2**(e + 1)``, and beside them zeros, infinities and NaNs. The classes are disjoint and
add up to the number of elements. *Zero* means ``abs(x) < 2**-126``: fp32's own subnormals count as zero.

Two properties make it the core data type. Multiplying the tensor by ``2**k`` shifts it by ``k``, so one
histogram answers what would flush or overflow at every loss scale. And histograms *of the same scale* add
exactly, over layers, shards and time.

Arrays here are plain numpy, int64 for counts and float64 for values; nothing imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalescope.numerics.formats import FloatFormat

MIN_EXPONENT = -126
MAX_EXPONENT = 127
BINS = MAX_EXPONENT - MIN_EXPONENT + 1

# How far a measured sum of squares may be from the truth, as a part of it.
_SUM_ERROR = 2.0**-15

Counts = NDArray[np.int64]
Values = NDArray[np.float64]


class Interval(NamedTuple):
    """What is known of a count or a share: it lies in ``[low, high]``; exact where both are equal."""

    low: float
    high: float

    @property
    def exact(self) -> bool:
        return self.low == self.high

    def over(self, whole: float) -> Interval:
        """The same as a share of ``whole`` (0 of nothing is 0)."""
        return Interval(self.low / whole, self.high / whole) if whole else Interval(0.0, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Histograms:
    """Exponent histograms of several tensors, one row each.

    Attributes:
        counts: int64 [rows, 254], column ``i`` counting exponent ``i - 126``.
        zero, inf, nan: int64 [rows].
        amax: float64 [rows], the largest finite magnitude, 0 where there is none.
        sum_squares: float64 [rows], the sum of squares of the finite values.
    """

    counts: Counts
    zero: Counts
    inf: Counts
    nan: Counts
    amax: Values
    sum_squares: Values

    @staticmethod
    def empty(rows: int) -> Histograms:
        """``rows`` histograms of tensors without elements: the neutral element of :meth:`merge`."""
        whole, real = np.zeros((3, rows), np.int64), np.zeros((2, rows), np.float64)
        return Histograms(np.zeros((rows, BINS), np.int64), whole[0], whole[1], whole[2], real[0], real[1])

    @staticmethod
    def stack(blocks: Sequence[Histograms]) -> Histograms:
        """All rows of ``blocks`` under one another."""
        return Histograms(
            np.concatenate([block.counts for block in blocks]),
            np.concatenate([block.zero for block in blocks]),
            np.concatenate([block.inf for block in blocks]),
            np.concatenate([block.nan for block in blocks]),
            np.concatenate([block.amax for block in blocks]),
            np.concatenate([block.sum_squares for block in blocks]),
        )

    @property
    def rows(self) -> int:
        return len(self.zero)

    @property
    def numel(self) -> Counts:
        """int64 [rows]: elements of each tensor, the sum of all classes."""
        return self.nonzero + self.zero + self.inf + self.nan

    @property
    def nonzero(self) -> Counts:
        """int64 [rows]: finite values of at least ``2**-126``."""
        return np.asarray(self.counts.sum(axis=1))

    @property
    def nonfinite(self) -> Counts:
        return self.inf + self.nan

    def take(self, rows: Sequence[int] | NDArray[np.integer]) -> Histograms:
        """The named rows, in that order."""
        index = np.asarray(rows, np.intp)
        return Histograms(
            self.counts[index],
            self.zero[index],
            self.inf[index],
            self.nan[index],
            self.amax[index],
            self.sum_squares[index],
        )

    def merge(self, other: Histograms) -> Histograms:
        """Row by row, the histogram of both tensors together. Only for values at the same loss scale.

        Raises:
            ValueError: if the numbers of rows differ.
        """
        if self.rows != other.rows:
            raise ValueError(f"expected {self.rows} rows to merge, got {other.rows}")
        return Histograms(
            self.counts + other.counts,
            self.zero + other.zero,
            self.inf + other.inf,
            self.nan + other.nan,
            np.maximum(self.amax, other.amax),
            self.sum_squares + other.sum_squares,
        )

    def total(self) -> Histograms:
        """One row: all tensors together."""
        if not self.rows:
            return Histograms.empty(1)
        return Histograms(
            self.counts.sum(axis=0, keepdims=True),
            self.zero.sum(keepdims=True),
            self.inf.sum(keepdims=True),
            self.nan.sum(keepdims=True),
            self.amax.max(keepdims=True),
            self.sum_squares.sum(keepdims=True),
        )

    def shift(self, octaves: int) -> Histograms:
        """The histograms of the tensors multiplied by ``2**octaves``, as fp32 would hold them.

        What falls below ``2**-126`` counts as zero, what reaches ``2**128`` as infinite; then ``amax`` and
        ``sum_squares`` still describe the values before they left the range.
        """
        counts = np.zeros_like(self.counts)
        kept = max(BINS - abs(octaves), 0)
        source = slice(BINS - kept, BINS) if octaves < 0 else slice(0, kept)
        target = slice(0, kept) if octaves < 0 else slice(BINS - kept, BINS)
        counts[:, target] = self.counts[:, source]
        lost = self.nonzero - counts.sum(axis=1)
        return Histograms(
            counts,
            self.zero + (lost if octaves < 0 else 0),
            self.inf + (lost if octaves > 0 else 0),
            self.nan,
            np.ldexp(self.amax, octaves),
            np.ldexp(self.sum_squares, 2 * octaves),
        )


def below(table: Histograms, exponent: float) -> tuple[Counts, Counts]:
    """How many non-zero values are at most ``2**exponent``, as bounds.

    Returns:
        (low, high), each int64 [rows]. For a whole ``exponent`` the edge is a bin's edge and only the values
        exactly on it are in doubt: low leaves them out, high counts their whole bin. For any other
        exponent the edge lies inside a bin, which is all that is in doubt.
    """
    edge = min(max(math.floor(exponent) - MIN_EXPONENT, 0), BINS)
    low = table.counts[:, :edge].sum(axis=1)
    if exponent < MIN_EXPONENT or edge == BINS:
        return low, low
    return low, low + table.counts[:, edge]


def flushed(table: Histograms, target: FloatFormat, octaves: float = 0.0) -> tuple[Counts, Counts]:
    """How many non-zero values a cast to ``target`` rounds to zero after multiplying by ``2**octaves``.

    Returns:
        (low, high), int64 [rows]. Exact bounds for gradients computed in fp32 or bf16. For those computed in
        fp16 an estimate, and for ``octaves >= 0`` a lower bound: what had flushed is zero already.
    """
    return below(table, target.flush_exponent - octaves)


def subnormal(table: Histograms, target: FloatFormat) -> Counts:
    """int64 [rows]: values with ``0 < abs(x) < min normal`` of ``target``. Exact: the edge is a bin's edge."""
    return np.asarray(table.counts[:, : max(target.min_normal_exponent - MIN_EXPONENT, 0)].sum(axis=1))


def energy_below(table: Histograms, exponent: float) -> tuple[Values, Values]:
    """The share of the sum of squares that values of at most ``2**exponent`` have, as bounds.

    A value of bin ``e`` has a square in ``[4**e, 4**(e + 1))``, none is above ``amax`` and one is, and all
    together are the sum of squares: both sides of the edge bound either share.

    Returns:
        (low, high), each float64 [rows]; 0 where every value is 0. As in :func:`below` the bin on the edge is
        in doubt, and values that are exactly ``2**exponent`` with it.
    """
    edge = min(max(math.floor(exponent) - MIN_EXPONENT, 0), BINS)
    at_least, at_most = _energy_bounds(table)
    beyond = edge + (exponent >= MIN_EXPONENT)
    low, high = at_least[:, :edge].sum(axis=1), at_most[:, :edge].sum(axis=1) + table.zero * 4.0**MIN_EXPONENT
    if edge < beyond <= BINS:
        high += np.minimum(at_most[:, edge], table.counts[:, edge] * 4.0**exponent)
    above = at_least[:, beyond:].sum(axis=1), np.where(table.amax < 2.0**128, at_most[:, edge:].sum(axis=1), np.inf)
    least, most = table.sum_squares * (1 - _SUM_ERROR), table.sum_squares * (1 + _SUM_ERROR)
    low = np.maximum(_over(low, most), 1 - _over(above[1], least))
    high = np.minimum(_over(high, least), 1 - _over(above[0], most))
    some = table.sum_squares > 0
    return np.where(some, np.clip(low, 0, 1), 0.0), np.where(some, np.clip(high, 0, 1), 0.0)


def _energy_bounds(table: Histograms) -> tuple[Values, Values]:
    """Float64 [rows, 254]: the least and the most that the squares of each bin can add up to."""
    floors = 4.0 ** np.arange(MIN_EXPONENT, MAX_EXPONENT + 1)
    at_least = table.counts * floors
    at_most = table.counts * np.minimum(4 * floors, np.square(table.amax)[:, None])
    top = np.clip(np.frexp(table.amax)[1] - 1 - MIN_EXPONENT, 0, BINS - 1)
    rows = np.flatnonzero(table.counts[np.arange(table.rows), top])
    at_least[rows, top[rows]] += np.square(table.amax[rows]) - floors[top[rows]]
    return at_least, at_most


def _over(part: Values, whole: Values) -> Values:
    return np.asarray(np.divide(part, whole, out=np.zeros_like(whole), where=whole > 0))


def overflowed(table: Histograms, target: FloatFormat, octaves: float = 0.0) -> tuple[Counts, Counts]:
    """How many finite values a cast to ``target`` does not keep finite after multiplying by ``2**octaves``.

    Returns:
        (low, high), int64 [rows]. The edge lies inside a bin: ``amax`` settles whether any value reaches it,
        the bin bounds how many do. Values that are infinite already are not counted here.
    """
    edge = target.overflow_from * 2.0**-octaves
    bin_of_edge = math.floor(math.log2(edge)) - MIN_EXPONENT
    if bin_of_edge >= BINS:
        none = np.zeros(table.rows, np.int64)
        return none, none
    first = max(bin_of_edge, -1)
    above = table.counts[:, first + 1 :].sum(axis=1)
    inside = table.counts[:, first] if first >= 0 else np.zeros(table.rows, np.int64)
    reached = table.amax >= edge
    low = np.where(reached & (above == 0), np.minimum(inside, 1), above)
    return np.asarray(low), np.asarray(np.where(reached, above + inside, above))


def headroom(amax: float, target: FloatFormat) -> float:
    """Octaves between ``amax`` and the largest finite value of ``target``; infinite for ``amax == 0``."""
    return math.log2(target.max_finite / amax) if amax > 0 else math.inf
