"""Layers out of the store: what the rows of a measure are, in which formats, and which records it is read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

from scalescope.numerics.formats import format_named
from scalescope.numerics.measures import MeasureName
from scalescope.wire import SampleKind, Subject

from scalescope_server.errors import NotFoundError
from scalescope_server.layer_rows import LayerRow, computed_rows, module_rows, stored_rows
from scalescope_server.measured_answers import HistogramAnswer, LayersAnswer
from scalescope_server.samples import histogram_answer, sample_layers, tally_layers
from scalescope_server.store.layouts import subject_of
from scalescope_server.store.reader import Reader
from scalescope_server.store.records import Listed
from scalescope_server.tallies import PLANS, TallyMeasure

NarrowFormat = Literal["fp16", "bf16"]


class Range(TypedDict):
    """What part of a run to read, as the reader's methods take it."""

    start: int | None
    stop: int | None
    points: int
    rank: int | None


@dataclass(frozen=True, slots=True)
class Layers:
    """One run's layers over a range."""

    reader: Reader
    run: str
    range: Range

    def sampled(self, measure: MeasureName, kind: SampleKind) -> LayersAnswer:
        """A measure of exponent histograms."""
        rows = self._rows(subject_of(kind))
        positions = [row.position for row in rows]
        bucket, samples = self.reader.samples(self.run, kind=kind, parameters=positions, **self.range)
        return sample_layers(measure, kind, bucket, samples, rows)

    def tallied(self, measure: TallyMeasure, narrow: NarrowFormat | None) -> LayersAnswer:
        """A measure of tallies; ``narrow``: the format that it asks about, by default each row's own."""
        plan = PLANS[measure]
        subject: Subject = "module" if plan.kind == "module" else "parameter"
        rows = self._rows(subject) if subject == "module" else stored_rows(self._listed().parameters)
        if narrow is not None:
            rows = [row._replace(format=format_named(narrow)) for row in rows]
        positions = [row.position for row in rows]
        bucket, tallies = self.reader.tallies(self.run, plan.kind, plan.columns, positions, **self.range)
        return tally_layers(measure, bucket, tallies, rows)

    def histogram(self, name: str, kind: SampleKind) -> HistogramAnswer:
        """The histograms of one parameter, or of one module where the kind is of modules.

        Raises:
            NotFoundError: if the run has none of this name.
        """
        subject = subject_of(kind)
        positions = [row.position for row in self._rows(subject) if row.name == name]
        if not positions:
            raise NotFoundError(f"run {self.run!r} has no {subject} {name!r}", field="parameter")
        bucket, samples = self.reader.samples(self.run, kind=kind, parameters=positions, **self.range)
        return histogram_answer(name, kind, bucket, samples)

    def _rows(self, subject: Subject) -> list[LayerRow]:
        """Parameters or modules with the format they are computed in."""
        listed = self._listed()
        if subject == "module":
            return module_rows(listed.modules, listed.parameters, listed.setup)
        return computed_rows(listed.parameters)

    def _listed(self) -> Listed:
        return self.reader.listed(self.run, stop=self.range["stop"], rank=self.range["rank"] or 0)
