"""The heat map of all layers: parameters or modules in forward order from top to bottom, time to the right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalescope_server.figures.chart import MONOSPACED, Chart, Json, Look, axis, layout, numbers, percent, plain
from scalescope_server.figures.grid import Grid, column_grain
from scalescope_server.figures.layer_colours import coloured
from scalescope_server.figures.measures import MEASURES, MeasurePlan
from scalescope_server.figures.short_names import shortened
from scalescope_server.layer_rows import LayerMeasure

# A row needs at least two pixels; more rows than this do not fit a screen, and a filter by name finds the rest.
MAX_ROWS = 400
# Of an empty map it is not plain whether nothing was measured or nothing found.
NOTHING = "0 everywhere"
# How the model itself is called, whose own name is empty.
WHOLE_MODEL = "(the model)"

# Name, latest and highest value of a row; of headroom the lowest.
Row = tuple[str, float | None, float | None]


@dataclass(frozen=True, slots=True)
class Measured:
    """``values`` float64 [rows, columns] of the grid, NaN where nothing is known; ``total``: how many rows match."""

    names: Sequence[str]
    grid: Grid[Any]
    values: NDArray[np.float64]
    total: int


def layers_chart(
    measure: LayerMeasure, measured: Measured, look: Look, *, missing: str = "No samples."
) -> tuple[Chart, list[Row]]:
    """``measure`` of each row over time, and its rows. The chart says so when it shows fewer than match.

    ``missing`` is what it says where there is nothing to show.
    """
    plan, values = MEASURES[measure], measured.values
    if not np.isfinite(values).any():
        return _missing(measure, plan, look, missing), [(name, None, None) for name in measured.names]
    told = (plan.meaning, column_grain(measured.grid, "all its samples together"))
    chart = Chart(
        name=measure,
        title=plan.title,
        grain=" · ".join((*told, NOTHING) if _is_nothing(values) else told),
        summary=_summary(plan, measured),
        missing=None,
        figure=_figure(plan, measured, look),
    )
    return chart, _rows(plan, measured)


def label(name: str) -> str:
    return name or WHOLE_MODEL


def _missing(measure: LayerMeasure, plan: MeasurePlan, look: Look, why: str) -> Chart:
    return Chart(
        name=measure,
        title=plan.title,
        grain="",
        summary=why,
        missing=why,
        figure={"data": [], "layout": layout(look, y=axis(look))},
    )


def _figure(plan: MeasurePlan, measured: Measured, look: Look) -> Json:
    names, grid = [label(name) for name in measured.names], measured.grid
    labels, widest = [plain(name) for name in names], 18 if look.compact else 34
    short = [plain(name, widest) for name in shortened(names, widest)]
    shown = range(0, len(labels), max(1, -(-len(labels) // 40)))
    colours = coloured(plan.scale, measured.values, look)
    told = colours.pop("meta", {})
    assert isinstance(told, dict)
    trace: Json = {
        "type": "heatmap",
        "x": grid.edges,
        "y": labels,
        "xgap": 0,
        "ygap": 1 if len(labels) <= 80 else 0,
        "hoverongaps": False,
        # The page hands the columns to each row: once for each cell they would be most of the answer.
        "meta": told | {"columns": grid.told()},
        **colours,
    }
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
    frame |= {"hovermode": "closest", "meta": {"names": list(measured.names)}}
    return {"data": [trace], "layout": frame}


def _rows(plan: MeasurePlan, measured: Measured) -> list[Row]:
    worst = min if plan.low else max
    found: list[Row] = []
    for name, row in zip(measured.names, measured.values, strict=True):
        known = [value for value in numbers(row[np.isfinite(row)], 4) if value is not None]
        found.append((name, known[-1] if known else None, worst(known, default=None)))
    return found


def _summary(plan: MeasurePlan, measured: Measured) -> str:
    shown = len(measured.names)
    cut = f" The first {shown:,} of {measured.total:,} are shown." if measured.total > shown else ""
    if _is_nothing(measured.values):
        return f"{NOTHING}.{cut}"
    finite = np.where(np.isfinite(measured.values), measured.values, np.nan)
    place = int(np.nanargmin(finite) if plan.low else np.nanargmax(finite))
    row, column = np.unravel_index(place, finite.shape)
    value = float(finite[row, column])
    told = {"share": percent(value), "octaves": f"{value:.3g} octaves"}.get(plan.scale, f"{value:.3g}")
    return f"{'Lowest' if plan.low else 'Highest'}: {told} in {label(measured.names[int(row)])}.{cut}"


def _is_nothing(values: NDArray[np.float64]) -> bool:
    return not np.nanmax(np.abs(values))
