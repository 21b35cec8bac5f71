"""Measures of layers at the updates that were sampled, as rules ask for them: of each sample, never of a roll-up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.exponents import BINS
from scalescope.numerics.formats import FP16
from scalescope.numerics.measures import MeasureName, Part, evaluate

from scalescope_server.layer_rows import SAMPLED, TALLIED, LayerRow, computed_rows, module_rows, stored_rows
from scalescope_server.store.reader import Reader
from scalescope_server.store.records import Listed, RunId, SampleBucket, TallyBucket, TallyKind
from scalescope_server.store.views import MAX_BUCKETS, MAX_CELLS
from scalescope_server.tallies import PLANS, TallyMeasure

Bucket = TypeVar("Bucket", SampleBucket, TallyBucket)


class Measured(NamedTuple):
    """A measure of the layers or modules ``names`` at ``steps``, int64[m], rising: ``values`` float64[m, n], NaN where
    it is not known.
    """

    names: tuple[str, ...]
    steps: NDArray[np.int64]
    values: NDArray[np.float64]


class Span(NamedTuple):
    """The steps ``first`` to ``last``, both in it, of a run with ``ranks`` ranks."""

    run: RunId
    first: int
    last: int
    ranks: int


def read_layers(reader: Reader, span: Span, measures: Collection[str]) -> dict[str, Measured]:
    """What ``measures`` were at the sampled steps of ``span``, of those that were sampled at any.

    A measure of updates is that of a tally where there is one, as in the layers' own pages.
    """
    told = reader.measured_steps(span.run, span.first, span.last)
    if not told:
        return {}
    reading = _Reading(reader, span, reader.listed(span.run, stop=span.last + 1))
    tallied = [TALLIED[name] for name in TALLIED if name in measures]
    for kind in sorted({PLANS[name].kind for name in tallied} & told.keys()):
        reading.tallied(kind, told[kind], [name for name in tallied if PLANS[name].kind == kind])
    sampled = [SAMPLED[name] for name in SAMPLED if name in measures and name not in TALLIED]
    if sampled and "grad" in told:
        reading.sampled(told["grad"], sampled)
    return {name: reading.measured(name) for name in reading.found}


@dataclass(frozen=True, slots=True)
class _Reading:
    """Gathers in ``found`` what is stored at steps of ``span``: of each measure its rows, and their values by step."""

    reader: Reader
    span: Span
    listed: Listed
    found: dict[str, tuple[Sequence[LayerRow], dict[int, NDArray[np.float64]]]] = field(default_factory=dict)

    def measured(self, name: str) -> Measured:
        rows, by_step = self.found[name]
        steps = np.array(list(by_step), np.int64)
        return Measured(tuple(row.name for row in rows), steps, np.array(list(by_step.values())))

    def sampled(self, steps: Sequence[int], measures: Sequence[MeasureName]) -> None:
        rows = computed_rows(self.listed.parameters)
        formats, positions = [row.format for row in rows], [row.position for row in rows]

        def read(start: int, stop: int) -> list[SampleBucket]:
            bucket, samples = self.reader.samples(self.span.run, start=start, stop=stop, parameters=positions)
            return samples if bucket == 1 else []

        for column in _columns(read, steps, self.span.ranks, cells=BINS * len(rows)):
            parts = [Part(sample.table, sample.scale, sample.samples, sample.periodic) for sample in column]
            for name in measures:
                self._add(column[0].step, name, rows, evaluate(name, parts, formats))

    def tallied(self, kind: TallyKind, steps: Sequence[int], measures: Sequence[TallyMeasure]) -> None:
        rows = _tallied_rows(kind, self.listed)
        # A format that is not known is taken for fp16, whose range is the narrowest.
        formats, positions = [row.format or FP16 for row in rows], [row.position for row in rows]
        names = sorted({column for name in measures for column in PLANS[name].columns})

        def read(start: int, stop: int) -> list[TallyBucket]:
            bucket, tallies = self.reader.tallies(self.span.run, kind, names, positions, start=start, stop=stop)
            return tallies if bucket == 1 else []

        for column in _columns(read, steps, self.span.ranks, cells=len(names) * len(rows)):
            for name in measures:
                self._add(column[0].step, name, rows, PLANS[name].read(column, formats))

    def _add(self, step: int, name: str, rows: Sequence[LayerRow], values: NDArray[np.float64]) -> None:
        self.found.setdefault(name, (rows, {}))[1][step] = values


def _columns(
    read: Callable[[int, int], Sequence[Bucket]], steps: Sequence[int], ranks: int, *, cells: int
) -> Iterator[list[Bucket]]:
    """What is stored of each of ``steps``, read so many at a time that none is answered by a roll-up."""
    size = max(min(MAX_BUCKETS, MAX_CELLS // max(cells, 1)) // ranks, 1)
    for place in range(0, len(steps), size):
        some = steps[place : place + size]
        for _, column in groupby(read(some[0], some[-1] + 1), key=attrgetter("step")):
            yield list(column)


def _tallied_rows(kind: TallyKind, listed: Listed) -> list[LayerRow]:
    if kind == "module":
        return module_rows(listed.modules, listed.parameters, listed.setup)
    return stored_rows(listed.parameters)
