"""Samples and tallies as answers: a measure over layers and time, one layer's histograms over time.

Pure, on arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.exponents import MIN_EXPONENT, Histograms
from scalescope.numerics.formats import FP16
from scalescope.numerics.measures import MeasureName, evaluate
from scalescope.wire import SampleKind

from scalescope_server.answers import single
from scalescope_server.figures.walls import as_parts
from scalescope_server.layer_rows import LayerRow
from scalescope_server.measured_answers import HistogramAnswer, LayersAnswer
from scalescope_server.store.records import SampleBucket, TallyBucket
from scalescope_server.tallies import PLANS, TallyMeasure

Bucket = TypeVar("Bucket", SampleBucket, TallyBucket)


def sample_layers(
    measure: MeasureName, kind: SampleKind, bucket: int, samples: Sequence[SampleBucket], rows: Sequence[LayerRow]
) -> LayersAnswer:
    """``measure`` of every row in every bucket of steps, each sample read at its own scale."""
    formats = [row.format for row in rows]
    columns = _by_step(samples)
    return _answer(
        measure,
        kind,
        bucket,
        rows,
        step=[column[0].step for column in columns],
        samples=[_most([sample.samples for sample in column]) for column in columns],
        values=[evaluate(measure, as_parts(column), formats) for column in columns],
    )


def tally_layers(
    measure: TallyMeasure, bucket: int, tallies: Sequence[TallyBucket], rows: Sequence[LayerRow]
) -> LayersAnswer:
    """The same of tallies. A format that is not known is taken for fp16, whose range is the narrowest."""
    plan, formats = PLANS[measure], [row.format or FP16 for row in rows]
    columns = _by_step(tallies)
    return _answer(
        measure,
        plan.kind,
        bucket,
        rows,
        step=[column[0].step for column in columns],
        samples=[_most([tally.tallies for tally in column]) for column in columns],
        values=[plan.read(column, formats) for column in columns],
    )


def histogram_answer(name: str, kind: SampleKind, bucket: int, samples: Sequence[SampleBucket]) -> HistogramAnswer:
    """The histograms of one parameter or module; ``samples`` hold only its row."""
    found = [sample for sample in samples if sample.samples.sum()]
    # At one scale, what was taken by the clock and what was taken after trouble add exactly.
    rows = [list(group) for _, group in groupby(found, key=lambda sample: (sample.step, sample.scale))]
    table = Histograms.stack([_merged(row) for row in rows]) if rows else Histograms.empty(0)
    used = np.flatnonzero(table.counts.any(axis=0))
    first, end = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 0)
    return HistogramAnswer(
        parameter=name,
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


def _answer(
    measure: str,
    kind: str,
    bucket: int,
    rows: Sequence[LayerRow],
    *,
    step: list[int],
    samples: list[int],
    values: list[NDArray[np.float64]],
) -> LayersAnswer:
    return LayersAnswer(
        measure=measure,
        kind=kind,
        bucket=bucket,
        parameters=[row.name for row in rows],
        step=step,
        samples=samples,
        values=np.reshape(values, (len(step), len(rows))).T.tolist(),
    )


def _by_step(buckets: Sequence[Bucket]) -> list[list[Bucket]]:
    return [list(group) for _, group in groupby(buckets, key=attrgetter("step"))]


def _most(counts: Sequence[NDArray[np.int64]]) -> int:
    """How many records a column rests on: those of the row that has most."""
    return sum(int(count.max(initial=0)) for count in counts)


def _merged(samples: Sequence[SampleBucket]) -> Histograms:
    return reduce(Histograms.merge, [sample.table for sample in samples])
