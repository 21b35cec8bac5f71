"""The heat map of all layers: parameters in forward order from top to bottom, time to the right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.measures import MeasureName, evaluate

from scalescope_server.figures.chart import (
    MONOSPACED,
    Chart,
    Json,
    Look,
    axis,
    bounds,
    layout,
    log2,
    log2_label,
    numbers,
    plain,
    share_ticks,
)
from scalescope_server.figures.grid import Grid, column_grain
from scalescope_server.figures.walls import as_parts, compute_format
from scalescope_server.store.records import ParameterRow

# A row needs at least two pixels; more rows than this do not fit a screen, and a filter by name finds the rest.
MAX_ROWS = 400

# Below this the ramp would stretch over rounding noise.
_LEAST_TOP = 1e-4


@dataclass(frozen=True, slots=True)
class MeasurePlan:
    """How a measure is told: its heading, what its numbers are, and how colours spread over them."""

    title: str
    meaning: str
    scale: str


MEASURES: dict[MeasureName, MeasurePlan] = {
    "subnormal_share": MeasurePlan(
        "Gradients below the smallest normal number", "share of all elements, as they stood scaled", "share"
    ),
    "zero_share": MeasurePlan("Gradients that are exactly zero", "share of all elements", "share"),
    "nonfinite": MeasurePlan("Infinite and NaN gradients", "count of elements", "count"),
    "flush_share": MeasurePlan(
        "Gradients that a cast to fp16 would flush", "lower bound, share of the non-zeros, at their scale", "share"
    ),
    "subnormal_energy": MeasurePlan(
        "Gradient energy below the smallest normal number", "upper bound, share of the sum of squares", "share"
    ),
    "flush_energy": MeasurePlan(
        "Gradient energy that a cast to fp16 would flush", "upper bound, share of the sum of squares", "share"
    ),
    "amax": MeasurePlan("Largest gradient", "magnitude divided by the scale", "log2"),
    "norm": MeasurePlan("Gradient norm", "root mean square over the samples, divided by the scale", "log2"),
}


# Name, latest and highest value of a parameter.
Row = tuple[str, float | None, float | None]


def layers_chart(
    measure: MeasureName,
    grid: Grid,
    parameters: Sequence[ParameterRow],
    total: int,
    look: Look,
    *,
    missing: str = "No samples.",
) -> tuple[Chart, list[Row]]:
    """``measure`` of each of ``parameters`` (the rows of the grid's tables, forward order) over time, and its rows.

    ``total`` is how many parameters match; the chart says so when it shows fewer. ``missing`` is what it says where
    there is nothing to show.
    """
    plan = MEASURES[measure]
    values = _values(measure, grid, parameters)
    if not values.size or np.isnan(values).all():
        return _missing(measure, plan, look, missing), [(parameter.name, None, None) for parameter in parameters]
    chart = Chart(
        name=measure,
        title=plan.title,
        grain=f"{plan.meaning} · {column_grain(grid, 'all its samples together')}",
        summary=_summary(values, parameters, total),
        missing=None,
        figure=_figure(plan, values, grid, [p.name for p in parameters], look),
    )
    return chart, _rows(values, parameters)


def _values(measure: MeasureName, grid: Grid, parameters: Sequence[ParameterRow]) -> NDArray[np.float64]:
    """float64 [parameters, columns], NaN where there is no sample."""
    formats = [compute_format(parameter) for parameter in parameters]
    values = np.full((len(parameters), len(grid.columns)), np.nan)
    for i, column in enumerate(grid.columns):
        if column:
            values[:, i] = evaluate(measure, as_parts(column), formats)
    return values


def _missing(measure: MeasureName, plan: MeasurePlan, look: Look, why: str) -> Chart:
    return Chart(
        name=measure,
        title=plan.title,
        grain="",
        summary=why,
        missing=why,
        figure={"data": [], "layout": layout(look, y=axis(look))},
    )


def _figure(plan: MeasurePlan, values: NDArray[np.float64], grid: Grid, names: Sequence[str], look: Look) -> Json:
    labels, widest = [plain(name) for name in names], 18 if look.compact else 34
    short = [plain(name, widest) for name in _abbreviated(names, widest)]
    shown = range(0, len(labels), max(1, -(-len(labels) // 40)))
    z, colours = _colours(plan, values)
    trace: Json = {
        "type": "heatmap",
        "x": grid.edges,
        "y": labels,
        "z": [numbers(row, 4) for row in z],
        "colorscale": [[i / (len(look.palette.ramp) - 1), c] for i, c in enumerate(look.palette.ramp)],
        "xgap": 0,
        "ygap": 1 if len(labels) <= 80 else 0,
        "hoverongaps": False,
        **colours,
        "colorbar": _colour_bar(plan, z, look),
    }
    if plan.scale != "share":
        trace["customdata"] = [numbers(row, 4) for row in values]
    y = axis(look) | {
        "type": "category",
        "autorange": "reversed",
        "tickmode": "array",
        "tickvals": [labels[i] for i in shown],
        "ticktext": [short[i] for i in shown],
        "tickfont": {"family": MONOSPACED, "size": 10, "color": look.palette.quiet},
        "showgrid": False,
        "ticks": "",
    }
    x: Json = {"range": list(grid.span), "showgrid": False}
    if look.compact:
        x["nticks"] = 3
    left = 12 + min(max(len(name) for name in short), widest) * 6
    frame = layout(look, y=y, left=max(left, 60), x=x)
    frame |= {"hovermode": "closest", "meta": {"names": list(names)}}
    return {"data": [trace], "layout": frame}


def _abbreviated(names: Sequence[str], limit: int) -> list[str]:
    """``names`` with leading modules cut to their initials until they fit, as many in all of one outer module:
    "b.0.norm1.weight", "b.0.qkv.bias". Numbers stay, since they tell which block it is.
    """
    depths: dict[str, int] = {}
    for name in names:
        needed = next((n for n in range(name.count(".")) if len(_initials(name, n)) <= limit), name.count("."))
        outer = name.partition(".")[0]
        depths[outer] = max(depths.get(outer, 0), needed)
    return [_initials(name, depths[name.partition(".")[0]]) for name in names]


def _initials(name: str, depth: int) -> str:
    *modules, own = name.split(".")
    cut = [part if part.isdecimal() else part[:1] for part in modules[:depth]]
    return ".".join([*cut, *modules[depth:], own])


def _colours(plan: MeasurePlan, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], Json]:
    """What is coloured, and the limits and hover text that go with it."""
    if plan.scale == "share":
        top = max(float(np.nanmax(values)), _LEAST_TOP)
        return values, {"zmin": 0.0, "zmax": top, "hovertemplate": "%{y}<br>update %{x:,.0f}: %{z:.3~p}<extra></extra>"}
    hover: Json = {"hovertemplate": "%{y}<br>update %{x:,.0f}: %{customdata:.4~g}<extra></extra>"}
    if plan.scale == "count":
        counted = np.log10(1.0 + values)
        return counted, {"zmin": 0.0, "zmax": max(float(np.nanmax(counted)), 1.0)} | hover
    return log2(values), hover


def _colour_bar(plan: MeasurePlan, z: NDArray[np.float64], look: Look) -> Json:
    bar: Json = {
        "thickness": 8,
        "len": 1.0,
        "outlinewidth": 0,
        "tickfont": {"color": look.palette.quiet, "size": 10},
        "nticks": 6,
        "xpad": 6,
    }
    if plan.scale == "share":
        return bar | share_ticks(max(float(np.nanmax(z)), _LEAST_TOP))
    if plan.scale == "count":
        marks = range(int(max(np.nanmax(z), 1.0)) + 1)
        return bar | {
            "tickvals": [float(np.log10(1 + 10**k)) for k in marks],
            "ticktext": [f"{10**k:,}" for k in marks],
        }
    low, high = bounds(z) or (0.0, 1.0)
    step = max(round((high - low) / 5), 1)
    marks = range(math.ceil(low), math.floor(high) + 1, step)
    return bar | {"tickvals": list(marks), "ticktext": [log2_label(mark) for mark in marks]}


def _rows(values: NDArray[np.float64], parameters: Sequence[ParameterRow]) -> list[Row]:
    found = []
    for parameter, row in zip(parameters, values, strict=True):
        known = numbers(row[~np.isnan(row)], 4)
        found.append(
            (parameter.name, known[-1] if known else None, max((v for v in known if v is not None), default=None))
        )
    return found


def _summary(values: NDArray[np.float64], parameters: Sequence[ParameterRow], total: int) -> str:
    row, column = np.unravel_index(int(np.nanargmax(values)), values.shape)
    cut = f" The first {len(parameters):,} of {total:,} are shown." if total > len(parameters) else ""
    return f"Highest: {values[row, column]:.3g} in {parameters[int(row)].name}.{cut}"
