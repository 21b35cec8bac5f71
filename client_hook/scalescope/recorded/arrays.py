"""What is read of a run: numpy arrays beside the steps they belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
Real = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """A series, exact: ``value`` float64 [n] of the updates ``step`` int64 [n]; NaN and infinity as they were told."""

    step: Whole
    value: Real


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """A series folded: a row for each ``bucket`` updates that begin at ``step``; bucket 1 is exact.

    ``n`` counts the finite values, which ``min``, ``max`` and ``sum`` fold (NaN where there is none); ``nan`` and
    ``inf`` count the others; ``last`` is NaN where it is not finite.
    """

    bucket: int
    step: Whole
    n: Whole
    min: Real
    max: Real
    last: Real
    sum: Real
    nan: Whole
    inf: Whole


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Events in the order of their steps, one in each place: ``kind`` and ``data`` of the update ``step`` of a rank."""

    step: Whole
    rank: Whole
    at: Real
    kind: list[str]
    data: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Exponent histograms of one parameter or module, a row for each bucket of steps and scale.

    ``counts`` int64 [n, exponents] counts the values with 2^e <= abs(x) < 2^(e + 1) where e is in ``exponents``, as
    they stood, gradients multiplied by ``scale`` (NaN without a scaler); ``samples``: how many a row rests on.
    """

    bucket: int
    exponents: Whole
    step: Whole
    scale: Real
    counts: Whole
    zero: Whole
    inf: Whole
    nan: Whole
    samples: Whole


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """One measure of all layers: ``values`` float64 [names, steps], NaN where it is not known.

    ``samples`` int64 [steps]: how many samples, tallies or probes each column rests on.
    """

    measure: str
    bucket: int
    names: list[str]
    step: Whole
    values: Real
    samples: Whole
