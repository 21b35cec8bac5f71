"""Samples as answers: a measure over layers and time, one parameter's histograms over time. Pure, on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import groupby

import numpy as np
from scalescope.numerics.exponents import MIN_EXPONENT, Histograms
from scalescope.numerics.measures import MeasureName, evaluate

from scalescope_server.answers import HistogramAnswer, LayersAnswer, single
from scalescope_server.figures.walls import as_parts, compute_format
from scalescope_server.store.records import ParameterRow, SampleBucket


def layers_answer(
    measure: MeasureName, kind: str, bucket: int, samples: Sequence[SampleBucket], parameters: Sequence[ParameterRow]
) -> LayersAnswer:
    """``measure`` of every parameter in every bucket of steps, each sample read at its own scale."""
    formats = [compute_format(parameter) for parameter in parameters]
    columns = [list(group) for _, group in groupby(samples, key=lambda sample: sample.step)]
    parts = [as_parts(column) for column in columns]
    values = np.reshape([evaluate(measure, part, formats) for part in parts], (len(columns), len(formats)))
    return LayersAnswer(
        measure=measure,
        kind=kind,
        bucket=bucket,
        parameters=[parameter.name for parameter in parameters],
        step=[column[0].step for column in columns],
        samples=[sum(int(sample.samples.max(initial=0)) for sample in column) for column in columns],
        values=values.T.tolist(),
    )


def histogram_answer(parameter: str, kind: str, bucket: int, samples: Sequence[SampleBucket]) -> HistogramAnswer:
    """The histograms of one parameter; ``samples`` hold only its row."""
    found = [sample for sample in samples if sample.samples.sum()]
    # At one scale, what was taken by the clock and what was taken after trouble add exactly.
    rows = [list(group) for _, group in groupby(found, key=lambda sample: (sample.step, sample.scale))]
    table = Histograms.stack([_merged(row) for row in rows]) if rows else Histograms.empty(0)
    used = np.flatnonzero(table.counts.any(axis=0))
    first, end = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 0)
    return HistogramAnswer(
        parameter=parameter,
        kind=kind,
        bucket=bucket,
        exponents=list(range(first + MIN_EXPONENT, end + MIN_EXPONENT)),
        step=[row[0].step for row in rows],
        scale=[single(row[0].scale) for row in rows],
        counts=table.counts[:, first:end].tolist(),
        zero=table.zero.tolist(),
        inf=table.inf.tolist(),
        nan=table.nan.tolist(),
        samples=[sum(int(sample.samples.sum()) for sample in row) for row in rows],
    )


def _merged(samples: Sequence[SampleBucket]) -> Histograms:
    return reduce(Histograms.merge, [sample.table for sample in samples])
