"""One value for the run out of those of all layers, modules or ranks, and whose it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalescope_server.rules.expression import AcrossName
from scalescope_server.rules.signals.each import Each
from scalescope_server.rules.signals.rows import Rows, any_of
from scalescope_server.rules.signals.signal import Column, Evidence, Now, Signal, Span, unbounded


class Picked(NamedTuple):
    """Out of each of k rows: ``values`` float64[k], free where not ``known`` bool[k]; ``culprits`` intp[k], the column
    whose value it is, -1 where it is that of none.
    """

    values: NDArray[np.float64]
    known: NDArray[np.bool_]
    culprits: NDArray[np.intp]


class OfEach(Signal):
    """What all together come to."""

    __slots__ = ("_culprits", "_of")

    def __init__(self, of: Each) -> None:
        super().__init__()
        self._of = of
        self._culprits = np.full(1, -1, np.intp)

    def tick(self, now: Now) -> None:
        self.fresh, self.moved = self._of.fresh, self._of.moved
        if self.moved:
            picked = self._pick(self._of.rows.last())
            self.value = picked.values[0].item() if picked.known[0] else None
            self._culprits = picked.culprits

    def stretch(self, span: Span) -> Column:
        rows = self._of.rows
        picked = self._pick(rows)
        self._culprits = picked.culprits
        holding, fresh = rows.holding(np.arange(len(span))), np.zeros(len(span), np.bool_)
        fresh[rows.at[rows.fresh]] = True
        return Column(picked.values[holding], picked.known[holding], fresh, unbounded(len(span)))

    def settle(self) -> None:
        super().settle()
        self._culprits = self._culprits[-1:].copy()

    def evidence(self, index: int | None) -> Evidence:
        rows = self._of.rows
        row = -1 if index is None or self.column is None else int(rows.holding(np.array(index)))
        place = int(self._culprits[row])
        return self.at(index), None if place < 0 else rows.keys[place]

    def _pick(self, rows: Rows) -> Picked:
        raise NotImplementedError


class AcrossSignal(OfEach):
    """The largest of all, their mean and the like, of those that are numbers; not known where there is none."""

    __slots__ = ("_function",)

    def __init__(self, function: AcrossName, of: Each) -> None:
        super().__init__(of)
        self._function = PICKS[function]

    def _pick(self, rows: Rows) -> Picked:
        numbers = rows.known & ~np.isnan(rows.values)
        if not len(rows.keys):
            return Picked(np.zeros(len(rows.at)), np.zeros(len(rows.at), np.bool_), np.full(len(rows.at), -1))
        values, culprits = self._function(rows.values, numbers)
        return Picked(values, any_of(numbers), culprits)


class MatchingSignal(OfEach):
    """For how many it holds, and the first of them; not known where it is not known for any."""

    __slots__ = ()

    def _pick(self, rows: Rows) -> Picked:
        held = rows.known & (rows.values != 0.0)
        counts = held.sum(axis=1)
        first = held.argmax(axis=1) if len(rows.keys) else counts
        return Picked(counts.astype(np.float64), rows.any(), np.where(counts > 0, first, -1))


# Of values float64[k, n] and which of them count, bool[k, n]: what they come to, float64[k], and of which, intp[k].
Pick = Callable[[NDArray[np.float64], NDArray[np.bool_]], tuple[NDArray[np.float64], NDArray[np.intp]]]


def _largest(values: NDArray[np.float64], count: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    most = np.where(count, values, -np.inf).max(axis=1)
    culprits = (count & (values == most[:, None])).argmax(axis=1)
    return values[np.arange(len(values)), culprits], culprits


def _smallest(values: NDArray[np.float64], count: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    least, culprits = _largest(-values, count)
    return -least, culprits


def _median(values: NDArray[np.float64], count: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    # NaN is sorted last.
    ordered, rows = np.sort(np.where(count, values, np.nan), axis=1), np.arange(len(values))
    number = count.sum(axis=1)
    upper = number // 2
    high = ordered[rows, np.minimum(upper, values.shape[1] - 1)]
    with np.errstate(all="ignore"):
        between = (ordered[rows, np.maximum(upper - 1, 0)] + high) / 2.0
    return np.where(number % 2 == 1, high, between), _nobody(len(values))


def _sum(values: NDArray[np.float64], count: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    return np.array([_exact_sum(row[mine]) for row, mine in zip(values, count, strict=True)]), _nobody(len(values))


def _mean(values: NDArray[np.float64], count: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    sums, nobody = _sum(values, count)
    return sums / np.maximum(count.sum(axis=1), 1), nobody


def _exact_sum(values: NDArray[np.float64]) -> float:
    """The float nearest to the sum, whatever the order; where it is infinite or NaN, as floats add up."""
    try:
        return math.fsum(values.tolist())
    except (OverflowError, ValueError):
        with np.errstate(all="ignore"):
            return float(values.sum())


def _nobody(rows: int) -> NDArray[np.intp]:
    return np.full(rows, -1, np.intp)


PICKS: dict[AcrossName, Pick] = {
    "max": _largest,
    "min": _smallest,
    "sum": _sum,
    "mean": _mean,
    "median": _median,
}
