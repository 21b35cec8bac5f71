"""The series that the store reads out of every sample of gradients, and of every tally of updates.

Each is read out of a few sums, which add up over the ranks of a sharded training. Shares are over all parameters of the
sample together. Values are those of ``numerics.md``: zeros over elements,
subnormals of each parameter's own compute format over the elements whose format is known, fp16 flushes at the
scale of the step over the non-zeros (the low bound).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.formats import BF16, E4M3FN, E5M2, FP16, FP32, FloatFormat, known_format

from scalescope_server.store.columns import Columns, Real
from scalescope_server.store.stacks import Stack

DERIVED = ("zero_share", "subnormal_share", "flush_share", "amax", "grad_norm", "update_ratio")

SumsKind = Literal["grad", "update"]
# How many of the ranks that tell gradients, or updates, a point over all of them still lacks.
MISSING: dict[SumsKind, str] = {"grad": "ranks_missing", "update": "ranks_missing/update"}
# The series that a run of several ranks has of all of them together.
MERGED_SERIES = (*DERIVED, *MISSING.values())

# Values by series name: for which of some records there is one, bool [records], and what it is, float64 [records].
Values = Mapping[str, tuple[NDArray[np.bool_], Real]]

# The position of a format is the code that ``layout.formats`` stores; 0 is "not known". Only append.
_FORMATS: tuple[FloatFormat | None, ...] = (None, FP16, BF16, FP32, E4M3FN, E5M2)


def format_code(name: str | None) -> int:
    """The code under which a compute format is stored; 0 for none, or one that we know no limits of."""
    return _FORMATS.index(known_format(name))


class GradientSums(NamedTuple):
    """What the series of one step of gradients are read out of, over some of its elements.

    ``of_known``: elements whose compute format is known, ``subnormal`` those of them below its normal range.
    ``flushed``: at the scale of the step, the low bound. ``amax`` and ``norm`` are of the finite values, unscaled.
    """

    elements: float
    zero: float
    nonzero: float
    flushed: float
    subnormal: float
    of_known: float
    amax: float
    norm: float
    nan: float
    inf: float

    def plus(self, other: GradientSums) -> GradientSums:
        """Of both together, whatever their scales."""
        added = GradientSums(*(one + two for one, two in zip(self, other, strict=True)))
        # NaN, of a scale of 0, is no maximum: it stays.
        amax = float(np.maximum(self.amax, other.amax))
        return added._replace(amax=amax, norm=math.hypot(self.norm, other.norm))

    def values(self) -> dict[str, float]:
        """Series name -> value, as :func:`gradient_series` has them."""
        found = gradient_series(np.array([self]))
        return {name: float(values[0]) for name, (given, values) in found.items() if given[0]}


class UpdateSums(NamedTuple):
    """Squares of the updates, and of the weights that they moved, where both are known."""

    moved: float
    held: float

    def plus(self, other: UpdateSums) -> UpdateSums:
        return UpdateSums(self.moved + other.moved, self.held + other.held)

    def values(self) -> dict[str, float]:
        """norm(d) / norm(w); left out where there is no weight."""
        return {"update_ratio": math.sqrt(self.moved / self.held)} if self.held else {}


def gradient_sums(stack: Stack, formats: NDArray[np.uint8], scales: Sequence[float | None]) -> Real:
    """The :class:`GradientSums` of each sample of gradients by itself, scaled by its scale: a row of float64 for each.

    ``formats``: code of each row's compute format, uint8 [rows].
    """
    codes = np.flatnonzero(np.bincount(formats))
    # In float64 they are exact up to 2**53, and a product with a matrix is much faster than sums of whole numbers.
    of_code = (formats == codes[:, None]).astype(np.float64)
    counts = of_code @ stack.counts
    classes = of_code @ stack.classes.transpose(0, 2, 1).astype(np.float64)
    zero, inf, nan = classes.sum(axis=1).T
    nonzero = counts.sum(axis=(1, 2))
    known = [(i, limits) for i, code in enumerate(codes.tolist()) if (limits := _FORMATS[code]) is not None]
    none = np.zeros(len(nonzero))
    subnormal = sum((_below(counts[:, i : i + 1], f.min_normal_exponent - stack.low) for i, f in known), none)
    of_known = sum((counts[:, i].sum(axis=1) + classes[:, i].sum(axis=1) for i, _ in known), none)
    flushed = _below(counts, FP16.flush_exponent - stack.low)
    # A scale of 0 leaves nothing to divide by.
    divisors = np.array([1.0 if scale is None else scale or math.nan for scale in scales])
    with np.errstate(over="ignore", invalid="ignore"):
        amax = stack.amax.max(axis=1, initial=0.0) / divisors
        norm = np.sqrt(stack.sum_squares.sum(axis=1)) / divisors
    return np.stack(
        (nonzero + zero + inf + nan, zero, nonzero, flushed, subnormal, of_known, amax, norm, nan, inf), axis=1
    )


def gradient_series(sums: Real) -> Values:
    """Out of rows of :class:`GradientSums`. A share of nothing is left out; the norm is inf or NaN when a gradient is.

    Of a sample without elements there is nothing.
    """
    elements, zero, nonzero, flushed, subnormal, of_known, amax, norm, nan, inf = sums.T
    told = elements > 0
    norm = np.where(nan > 0, math.nan, np.where((inf > 0) & ~np.isnan(norm), math.inf, norm))
    return {
        "amax": (told, amax),
        "grad_norm": (told, norm),
        "zero_share": _shares(zero, elements),
        "flush_share": _shares(flushed, nonzero),
        "subnormal_share": _shares(subnormal, of_known),
    }


def _below(counts: NDArray[np.float64], columns: int) -> NDArray[np.float64]:
    """The counts of the first so many columns, all together, of each sample."""
    found: NDArray[np.float64] = counts[:, :, : max(columns, 0)].sum(axis=(1, 2))
    return found


def update_sums(columns: Columns) -> UpdateSums | None:
    """Of one tally of parameters; None where it does not tell both norms."""
    if not {"update_squares", "weight_squares"} <= set(columns):
        return None
    moved, held = columns["update_squares"], columns["weight_squares"]
    known = ~(np.isnan(moved) | np.isnan(held))
    with np.errstate(over="ignore"):
        return UpdateSums(float(moved[known].sum()), float(held[known].sum()))


def update_series(sums: Sequence[UpdateSums]) -> Values:
    """As :meth:`UpdateSums.values` has them."""
    ratios = [each.values().get("update_ratio") for each in sums]
    given = np.array([ratio is not None for ratio in ratios])
    return {"update_ratio": (given, np.array([ratio or 0.0 for ratio in ratios]))}


def _shares(part: Real, whole: Real) -> tuple[NDArray[np.bool_], Real]:
    given = whole > 0
    return given, np.divide(part, whole, out=np.zeros(len(whole)), where=given)
