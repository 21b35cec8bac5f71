"""Bands behind the lines of a chart, where alerts fired, and a mark at the head of each that says which.

The bands are shapes and not lines: they are as high as the chart, whatever is drawn in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from scalescope_server.figures.chart import Chart, Json, Key, plain
from scalescope_server.figures.palette import Palette
from scalescope_server.store.firings import Firing

_ROOM = 60


def with_firings(chart: Chart, firings: Sequence[Firing], newest: int, palette: Palette) -> Chart:
    """``chart`` with what fired, up to the update ``newest`` where it still does."""
    if not firings or chart.missing is not None:
        return chart
    shapes = [shape for firing in firings for shape in _band(firing, newest, _colour(firing, palette))]
    figure: dict[str, Any] = {**chart.figure}
    figure["data"] = [*figure["data"], _heads(firings, palette)]
    figure["layout"] = {**figure["layout"], "shapes": shapes, "yaxis9": _ABOVE}
    legend = [*chart.legend, Key("an alert fired", palette.warning, "band")]
    times = "once" if len(firings) == 1 else f"{len(firings)} times"
    return msgspec.structs.replace(
        chart, figure=figure, legend=legend, summary=f"{chart.summary} Alerts fired {times} here."
    )


# An axis of its own, since a chart's own may be of any measure.
_ABOVE: Json = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}


def _band(firing: Firing, newest: int, colour: str) -> list[Json]:
    stop = max(newest if firing.last_step is None else firing.last_step, firing.first_step) + 0.5
    ends = {"type": "rect", "xref": "x", "yref": "paper", "x0": firing.first_step - 0.5, "x1": stop, "layer": "below"}
    line = {"color": colour, "width": 0}
    return [
        ends | {"y0": 0, "y1": 1, "fillcolor": colour, "opacity": 0.10, "line": line},
        ends | {"y0": 0.985, "y1": 1, "fillcolor": colour, "opacity": 0.9, "line": line},
    ]


def _heads(firings: Sequence[Firing], palette: Palette) -> Json:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "alerts",
        "yaxis": "y9",
        "x": [firing.first_step for firing in firings],
        "y": [0.99] * len(firings),
        "marker": {"symbol": "square", "size": 8, "color": [_colour(firing, palette) for firing in firings]},
        "text": [_sentence(firing) for firing in firings],
        "hovertemplate": "%{text}<extra></extra>",
        "cliponaxis": False,
    }


def _sentence(firing: Firing) -> str:
    until = "it still does" if firing.last_step is None else f"until update {firing.last_step:,}"
    culprit = f"<br>{plain(firing.culprit, _ROOM)}" if firing.culprit else ""
    began = (
        f"after update {firing.first_step:,} while none came" if firing.by_time else f"at update {firing.first_step:,}"
    )
    return f"{plain(firing.rule, _ROOM)} fired {began}, {until}{culprit}"


def _colour(firing: Firing, palette: Palette) -> str:
    return {"critical": palette.overflow, "warning": palette.warning}.get(firing.severity, palette.accent)
