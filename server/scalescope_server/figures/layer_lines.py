"""One layer over time, beside its histogram: headroom of its module, its updates, its shares, its last probe.

A point is one sampled update, or all those of a bucket together: shares and ratios are of sums, largest values over
all, as :mod:`scalescope_server.tallies` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from scalescope.numerics.formats import FP16
from scalescope.numerics.measures import MeasureName, evaluate
from scalescope.numerics.tallies import PROBE_TALLIES

from scalescope_server.figures.chart import Chart, numbers
from scalescope_server.figures.layers import label
from scalescope_server.figures.over_time import alike, join_samples, join_tallies, series_of
from scalescope_server.figures.plans import USUAL_RATIO, Level, Line, Plan
from scalescope_server.figures.reads import MAX_COLUMNS, Wanted
from scalescope_server.figures.series import Span, series_chart
from scalescope_server.figures.walls import as_parts
from scalescope_server.layer_rows import LayerRow, computed_rows, module_rows, stored_rows
from scalescope_server.store.records import ParameterRow, ProbeRow, RunDetail, RunId, SampleBucket, Series, TallyBucket
from scalescope_server.tallies import PLANS, TallyMeasure, cosine, relative_error, true_underflow
from scalescope_server.tallies import Plan as TallyPlan

if TYPE_CHECKING:
    from scalescope_server.store.reader import Reader

_TOGETHER = "all its samples together"
_HEADROOM = Plan(
    "headroom",
    "Headroom",
    (Line("forward_headroom", "outputs", "ink"), Line("grad_output_headroom", "output gradients", "accent", "dash")),
    unit=" oct",
    sampled=True,
    fold=_TOGETHER,
    levels=(Level(0.0, "the wall", "overflow", "solid"), Level(1.0, "one octave", "warning")),
)
_RATIO = Plan(
    "update_ratio",
    "Update ratio: norm of the update over norm of the weights",
    (Line("update_ratio", "ratio", "ink"),),
    "log10",
    sampled=True,
    fold=_TOGETHER,
    levels=USUAL_RATIO,
)
_ABSORBED = Plan(
    "absorbed",
    "Absorbed updates",
    (
        Line("absorbed_share", "absorbed, of the intended", "flush"),
        Line("unchanged_share", "unchanged, of those with a gradient", "ink", "dot"),
    ),
    "share",
    sampled=True,
    fold=_TOGETHER,
)
_REGIONS = Plan(
    "regions",
    "Subnormal and flushed gradients, by elements and by energy",
    (
        Line("subnormal_share", "subnormal, of all elements", "warning"),
        Line("subnormal_energy", "subnormal, at most of the energy", "warning", "dot"),
        Line("flush_share", "flushed in fp16, of non-zeros", "flush"),
        Line("flush_energy", "flushed, at most of the energy", "flush", "dot"),
    ),
    "share",
    sampled=True,
    fold=_TOGETHER,
)
_REGION_MEASURES: tuple[MeasureName, ...] = ("subnormal_share", "subnormal_energy", "flush_share", "flush_energy")


class LayerProbe(Struct, frozen=True, kw_only=True):
    """The last reference probe of a layer before the end of the range, null where the reference is zero.

    ``estimate``: the flush share by the histogram of the sample next to it, taken at update ``estimated_at``.
    """

    step: int
    true_underflow: float | None
    relative_error: float | None
    cosine: float | None
    nonfinite: int
    estimate: float | None
    estimated_at: int | None


@dataclass(frozen=True, slots=True)
class Layer:
    """One parameter of a run over a range.

    ``samples`` are its own, of ``bucket`` updates each; ``span`` is what the time axes show.
    """

    reader: Reader
    run: RunId
    detail: RunDetail
    wanted: Wanted
    parameter: ParameterRow
    samples: Sequence[SampleBucket]
    bucket: int
    span: Span

    def charts(self) -> list[Chart]:
        (stored,) = stored_rows([self.parameter])
        told = stored.format.name if stored.format is not None else "bf16"
        is_copy = self.parameter.dtype.removeprefix("torch.") == "float32"
        absorbs = f"Updates that a copy in {told} would absorb" if is_copy else f"Updates that {told} absorbs"
        updates = self._tallied(stored, _RATIO, replace(_ABSORBED, title=absorbs))
        return [*self._headroom(), *updates, self._regions()]

    def probe(self) -> LayerProbe | None:
        """None where there was none."""
        names, wanted = list(PROBE_TALLIES), self.wanted
        _, found = self.reader.tallies(self.run, "probe", names, [self.parameter.index], stop=wanted.stop)
        taken = [bucket for bucket in found if bucket.tallies[0]]
        if not taken:
            return None
        last = taken[-1]
        row = ProbeRow(last.step, 0, 0.0, {}, np.array([self.parameter.index]), last.columns)
        nearest = min(self.samples, key=lambda sample: abs(sample.step - last.step), default=None)
        return LayerProbe(
            step=last.step,
            true_underflow=_one(true_underflow(row)),
            relative_error=_one(relative_error(row)),
            cosine=_one(cosine(row)),
            nonfinite=int(np.nan_to_num(last.columns["own_nonfinite"])[0]),
            estimate=None if nearest is None else _one(evaluate("flush_share", as_parts([nearest]), [FP16])),
            estimated_at=None if nearest is None else nearest.step,
        )

    def _headroom(self) -> list[Chart]:
        """Of the module that the parameter is of, where it is listened to."""
        setup = self.reader.setup(self.run, stop=self.wanted.stop)
        rows = module_rows(self.detail.modules, self.detail.parameters, setup)
        module = next((row for row in rows if row.name == self.parameter.module), None)
        if module is None:
            return []
        told = "" if module.format is None else f", of {module.format.name}"
        return self._tallied(module, replace(_HEADROOM, title=f"Headroom of {label(module.name)}{told}"))

    def _tallied(self, row: LayerRow, *plans: Plan) -> list[Chart]:
        """A chart for each of ``plans``, all of tallies of one kind, which are read once."""
        measures = {line.series: PLANS[_TALLIES[line.series]] for plan in plans for line in plan.lines}
        size, found = self._tallies(list(measures.values()), row)
        groups, of_row = alike(found, join_tallies), row.format or FP16
        series: dict[str, Series] = {
            name: series_of((group.steps, measure.read(group.parts, [of_row] * len(group.steps))) for group in groups)
            for name, measure in measures.items()
        }
        return [
            series_chart(plan, series, size, self.wanted.look, span=self.span, every=self.detail.every)
            for plan in plans
        ]

    def _tallies(self, measures: Sequence[TallyPlan], row: LayerRow) -> tuple[int, list[TallyBucket]]:
        (kind,) = {measure.kind for measure in measures}
        names = list(dict.fromkeys(name for measure in measures for name in measure.columns))
        points, wanted = min(MAX_COLUMNS, self.wanted.points), self.wanted
        return self.reader.tallies(
            self.run, kind, names, [row.position], start=wanted.start, stop=wanted.stop, points=points
        )

    def _regions(self) -> Chart:
        (row,) = computed_rows([self.parameter])
        groups = [(group.steps, as_parts(group.parts)) for group in alike(self.samples, join_samples)]
        series: dict[str, Series] = {
            name: series_of((steps, evaluate(name, parts, [row.format] * len(steps))) for steps, parts in groups)
            for name in _REGION_MEASURES
        }
        look, every = self.wanted.look, self.detail.every
        return series_chart(_REGIONS, series, self.bucket, look, span=self.span, every=every)


_TALLIES: Mapping[str, TallyMeasure] = {name: name for name in PLANS}


def _one(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float | None:
    return numbers(values)[0]
