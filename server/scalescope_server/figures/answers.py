"""What each page asks for: reads of the store, and the figures drawn from them. Runs in a reading thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from scalescope_server.errors import NotFoundError
from scalescope_server.figures.chart import Chart
from scalescope_server.figures.firings import with_firings
from scalescope_server.figures.hook_cost import HOOK_SERIES, hook_cost_chart
from scalescope_server.figures.lacking import complete, with_lacking
from scalescope_server.figures.layer import Reading, layer_chart, readings
from scalescope_server.figures.layer_lines import Layer, LayerProbe
from scalescope_server.figures.layers import layers_chart
from scalescope_server.figures.measured import read_measured
from scalescope_server.figures.measures import MEASURES
from scalescope_server.figures.plans import HOOK_COST, Plan, plans_for
from scalescope_server.figures.reads import Wanted, marked_events, sampled_grid, scale_walls, shown_span
from scalescope_server.figures.scale import NO_SCALER, scale_chart
from scalescope_server.figures.series import series_chart
from scalescope_server.figures.skip_rate import SKIP_RATE, rate_window, skip_rate_chart
from scalescope_server.figures.tiles import Tiles, tiles
from scalescope_server.figures.times import TIMES, is_split, times_chart
from scalescope_server.layer_rows import LayerMeasure
from scalescope_server.store.records import ParameterRow, RunDetail, RunId, Series

if TYPE_CHECKING:
    from scalescope_server.store.reader import Reader


NO_UPDATE = (
    "No update yet. The first comes with the first scaler.update(), without a scaler with the first optimizer.step()."
)
ENDED_WITHOUT = "The trainer ended before its first update."


class Named(Struct, frozen=True):
    name: str
    title: str


class OverviewAnswer(Struct, frozen=True, kw_only=True):
    """``step``: the last update the charts include, null before the first."""

    step: int | None
    available: list[Named]
    tiles: Tiles
    charts: list[Chart]


class Offered(Struct, frozen=True):
    """A measure to choose, under the heading ``group``."""

    name: str
    title: str
    group: str


class LayerLine(Struct, frozen=True):
    """A row of the heat map; ``worst`` is its highest value, of headroom the lowest. ``opens``: whose page it opens."""

    name: str
    latest: float | None
    worst: float | None
    opens: str | None


class LayersAnswer(Struct, frozen=True, kw_only=True):
    """``total``: how many rows match; ``called``: what a row is, "layer" or "module"."""

    step: int | None
    measures: list[Offered]
    total: int
    called: str
    chart: Chart
    rows: list[LayerLine]


class LayerAnswer(Struct, frozen=True, kw_only=True):
    """``scale`` is the one in force; ``names`` are all parameters in forward order.

    ``lines``: what else is known of the layer over time.
    """

    step: int | None
    scale: float | None
    parameter: ParameterRow
    names: list[str]
    chart: Chart
    readings: list[Reading]
    lines: list[Chart]
    probe: LayerProbe | None


def draw_overview(reader: Reader, run: RunId, wanted: Wanted, charts: Sequence[str] | None) -> OverviewAnswer:
    """The charts called ``charts`` (None: all) in the order of the page. Raises NotFound for no such run."""
    detail = reader.run(run)
    plans = {plan.name: plan for plan in plans_for(reader.series_names(run))}
    available = [Named("scale", "Loss scale")]
    if detail.summary.last_step is not None:
        available.append(Named(SKIP_RATE, "Updates skipped"))
    available += [Named(plan.name, plan.title) for plan in plans.values()]
    chosen = [named.name for named in available if charts is None or named.name in charts]
    return OverviewAnswer(
        step=detail.summary.last_step,
        available=available,
        tiles=tiles(reader, run, wanted, detail),
        charts=_charts(reader, run, wanted, detail, chosen, plans),
    )


def draw_layers(reader: Reader, run: RunId, wanted: Wanted, measure: LayerMeasure, match: str) -> LayersAnswer:
    """The heat map of ``measure``; ``match`` filters by a part of the name, whatever the case."""
    detail = reader.run(run)
    measured = read_measured(reader, run, wanted, detail, measure, match)
    missing = _nothing_measured(detail, measure)
    if not measured.total and match:
        missing = f'No {MEASURES[measure].rows} has "{match}" in its name.'
    chart, rows = layers_chart(measure, measured, wanted.look, missing=missing)
    return LayersAnswer(
        step=detail.summary.last_step,
        measures=[Offered(name, plan.title, plan.group) for name, plan in MEASURES.items()],
        total=measured.total,
        called=MEASURES[measure].rows,
        chart=chart,
        rows=[LayerLine(*row, opens=_opened_by(row[0], measure, detail.parameters)) for row in rows],
    )


def _opened_by(name: str, measure: LayerMeasure, parameters: Sequence[ParameterRow]) -> str | None:
    """The parameter whose page a row opens: itself, or the first in a module."""
    if MEASURES[measure].rows == "layer":
        return name
    inside = (p.name for p in parameters if not name or p.module == name or p.module.startswith(f"{name}."))
    return next(inside, None)


def _nothing_measured(detail: RunDetail, measure: LayerMeasure) -> str:
    group = MEASURES[measure].group
    if detail.summary.last_step is None or group == "Gradients":
        return _no_sample(detail)
    if group == "Reference probe":
        return "No reference probe in this range: scope.probe(lambda: loss_fn(model(x), y)) makes one."
    what = "Modules are listened to" if group == "Modules" else "Updates are measured"
    return f"Nothing in this range: {what.lower()} at sampled updates, every {detail.every:,}."


def draw_layer(reader: Reader, run: RunId, wanted: Wanted, parameter: str) -> LayerAnswer:
    """The histogram of ``parameter`` over time.

    Raises:
        NotFoundError: if the run has no such parameter.
    """
    detail = reader.run(run)
    row = next((p for p in detail.parameters if p.name == parameter), None)
    if row is None:
        raise NotFoundError(f"run {run} has no parameter called {parameter!r}", field="parameter")
    grid, samples, bucket = sampled_grid(reader, run, wanted, [row], detail)
    layer = Layer(reader, run, detail, wanted, row, samples, bucket, shown_span(wanted, detail))
    return LayerAnswer(
        step=detail.summary.last_step,
        scale=detail.summary.scale,
        parameter=row,
        names=[p.name for p in detail.parameters],
        chart=layer_chart(row, grid, wanted.look, missing=_no_sample(detail)),
        readings=readings(samples),
        lines=layer.charts() if detail.summary.last_step is not None else [],
        probe=layer.probe(),
    )


def _charts(
    reader: Reader, run: RunId, wanted: Wanted, detail: RunDetail, names: Sequence[str], plans: dict[str, Plan]
) -> list[Chart]:
    """One read of all series that the charts need, so that they agree on their newest update."""
    needed = {"scale", "skipped"} if {"scale", SKIP_RATE} & set(names) else set()
    needed |= {line.series for name in names if name in plans for line in plans[name].lines}
    needed |= {plans[name].lacking for name in names if name in plans and plans[name].lacking}
    needed |= set(HOOK_SERIES) if HOOK_COST in names else set()
    bucket, series = reader.series(
        run, sorted(needed), start=wanted.start, stop=wanted.stop, points=wanted.points, rank=wanted.rank
    )
    drawn: list[Chart] = []
    span, live = shown_span(wanted, detail), detail.summary.state == "running"
    for name in names:
        if name == "scale":
            events, walls = marked_events(reader, run, wanted), scale_walls(reader, run, wanted, detail)
            drawn.append(scale_chart(series, bucket, events, walls, wanted.look, missing=_no_scale(detail)))
        elif name == SKIP_RATE:
            drawn.append(_skip_rate(reader, run, wanted, series["skipped"], bucket))
        elif name == TIMES and is_split(series):
            drawn.append(times_chart(plans[name], series, bucket, wanted.look, span=span))
        elif name == HOOK_COST:
            drawn.append(hook_cost_chart(plans[name], series, bucket, wanted.look, span=span))
        else:
            whole = complete(plans[name], series, bucket, live=live)
            chart = series_chart(plans[name], whole, bucket, wanted.look, span=span, every=detail.every)
            drawn.append(with_lacking(chart, plans[name], whole, wanted.look.palette))
    fired, newest = reader.firings(run, start=wanted.start, stop=wanted.stop), detail.summary.last_step or 0
    return [with_firings(chart, fired, newest, wanted.look.palette) for chart in drawn]


def _no_update(detail: RunDetail) -> str:
    return ENDED_WITHOUT if detail.summary.state in ("finished", "crashed") else NO_UPDATE


def _no_scale(detail: RunDetail) -> str:
    if detail.summary.last_step is None:
        return _no_update(detail)
    return NO_SCALER if detail.scaler is None else "No loss scale has been recorded in this range."


def _no_sample(detail: RunDetail) -> str:
    if detail.summary.last_step is None:
        return _no_update(detail)
    return f"No sample in this range: gradients are sampled every {detail.every:,} updates and at each skip."


def _skip_rate(reader: Reader, run: RunId, wanted: Wanted, skipped: Series, bucket: int) -> Chart:
    """Zoomed in, the rate at the first update rests on those before it, which are read as well."""
    lead, start = rate_window(bucket) * bucket, wanted.start or 0
    if start and lead > bucket:
        before = min(lead, start)
        points = wanted.points + before // bucket + 1
        bucket, whole = reader.series(
            run, ["skipped"], start=start - before, stop=wanted.stop, points=points, rank=wanted.rank
        )
        skipped = whole["skipped"]
    return skip_rate_chart(skipped, bucket, wanted.look, start=start)
