"""What a hook adds, from pairs: the same updates with it and without, in turns, so that noise hits both alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RESAMPLES = 4_000
CONFIDENCE = 0.95

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the bounds that it lies between with 95 % confidence."""

    value: float
    low: float
    high: float

    def percent(self) -> str:
        return f"{100 * self.value:+7.2f} %  [{100 * self.low:+.2f}, {100 * self.high:+.2f}]"


def median(values: Sequence[float]) -> Interval:
    """The median with its bootstrap interval."""
    return _interval(float(np.median(values)), _medians(values, np.random.default_rng(0)))


def mixed(often: Sequence[float], seldom: Sequence[float], share: float) -> Interval:
    """The medians of two kinds of updates, the second of which is ``share`` of all.

    The median over both together would hide the seldom ones, and their mean would let one pause of the machine
    decide.
    """
    if not often or not seldom:
        return median(often or seldom)
    rng = np.random.default_rng(0)
    drawn = (1 - share) * _medians(often, rng) + share * _medians(seldom, rng)
    return _interval((1 - share) * float(np.median(often)) + share * float(np.median(seldom)), drawn)


def _medians(values: Sequence[float], rng: np.random.Generator) -> Floats:
    drawn = rng.choice(np.asarray(values), size=(RESAMPLES, len(values)))
    found: Floats = np.median(drawn, axis=1)
    return found


def _interval(value: float, drawn: Floats) -> Interval:
    low, high = np.quantile(drawn, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return Interval(value, float(low), float(high))
