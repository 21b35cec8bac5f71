"""What figures are drawn from, made by hand: series, samples, parameters and events."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scalescope.numerics.exponents import MIN_EXPONENT, Histograms
from scalescope.packing import Trimmed
from scalescope_server.figures.chart import Look
from scalescope_server.figures.grid import Grid
from scalescope_server.figures.layers import Measured
from scalescope_server.figures.palette import DARK
from scalescope_server.store.records import EventRow, ParameterRow, SampleBucket, Series

LOOK = Look(DARK)


def series(values: Sequence[float], *, first: int = 0, bucket: int = 1) -> Series:
    """One value in each bucket, exact."""
    given = np.asarray(values, np.float64)
    finite = np.isfinite(given)
    clean = np.where(finite, given, np.nan)
    step = first + bucket * np.arange(len(given), dtype=np.int64)
    nan, inf = np.isnan(given).astype(np.int64), np.isinf(given).astype(np.int64)
    return Series(step, finite.astype(np.int64), clean, clean, clean, clean, nan, inf)


def parameter(name: str, index: int = 0, compute_format: str | None = "fp16") -> ParameterRow:
    return ParameterRow(
        name=name,
        module=name.rpartition(".")[0],
        shape=[4],
        dtype="float32",
        numel=4,
        compute_format=compute_format,
        index=index,
        backward=None,
    )


def table(*rows: Sequence[float]) -> Histograms:
    """The histograms of these values, one row each."""
    counted = Histograms.empty(len(rows))
    for i, row in enumerate(rows):
        values = np.asarray(row, np.float64)
        finite = np.isfinite(values) & (values != 0)
        np.add.at(counted.counts[i], np.floor(np.log2(np.abs(values[finite]))).astype(int) - MIN_EXPONENT, 1)
        counted.zero[i], counted.inf[i] = (values == 0).sum(), np.isinf(values).sum()
        counted.nan[i] = np.isnan(values).sum()
        counted.amax[i] = np.abs(values[finite]).max(initial=0.0)
        counted.sum_squares[i] = (values[finite] ** 2).sum()
    return counted


def sample(step: int, scale: float | None, *rows: Sequence[float], periodic: bool = True) -> SampleBucket:
    return SampleBucket(step, scale, periodic, np.ones(len(rows), np.int64), Trimmed.of(table(*rows)))


def event(step: int, kind: str, **data: object) -> EventRow:
    return EventRow(id=step, kind=kind, step=step, rank=0, at=0.0, data=data)


def shown(values: Sequence[Sequence[float]], *names: str) -> Measured:
    """Rows of a measure with these values, columns of ten updates."""
    empty: tuple[tuple[SampleBucket, ...], ...] = tuple(() for _ in values[0])
    begins = tuple(10 * i for i in range(len(empty) + 1))
    return Measured(names, Grid(10, begins, empty), np.array(values, np.float64), len(names))
