"""Charts of one quantity over updates: loss, norm, learning rate, shares, step time, skips, and the user's own.

A point is one update, or the last value of a bucket inside a band from its smallest to its largest. Values
that were NaN or infinite are marks on the upper edge: a line that only leaves a gap would hide them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scalescope_server.figures.cadence import AFTER_SKIP, holes
from scalescope_server.figures.chart import (
    PERCENT,
    Chart,
    Json,
    Key,
    Look,
    axis,
    bounds,
    grain,
    layout,
    log2,
    log2_axis,
    log10,
    log10_axis,
    numbers,
    percent,
    plain,
    share_axis,
)
from scalescope_server.figures.palette import Palette
from scalescope_server.figures.plans import Kind, Level, Line, Plan
from scalescope_server.store.records import Series

Span = tuple[float, float]
Rows = NDArray[np.intp]

_KEY_MARKS: dict[str, Literal["line", "dash", "dot"]] = {"solid": "line", "dash": "dash", "dot": "dot"}


def series_chart(
    plan: Plan, series: Mapping[str, Series], bucket: int, look: Look, *, span: Span | None = None, every: int = 1
) -> Chart:
    """``plan`` drawn from ``series`` (lines without values are left out), ``bucket`` updates per point.

    ``span``: the first and last update that the time axis shows; None: as far as there are values. ``every``: updates
    between samples where no budget spreads them; where samples are missing, lines over them are torn.
    """
    told = [(line, series.get(line.series)) for line in plan.lines]
    drawn = [(line, found) for line, found in told if found is not None and len(found.step)]
    if not drawn:
        return nothing_recorded(plan, look)
    low, high = _window([found for _, found in drawn], plan)
    data = [
        trace
        for line, found in drawn
        for trace in _traces(
            line, found, plan, bucket, _stretches(found, plan, bucket, every), len(drawn), look.palette
        )
    ]
    top = (high - (high - low) * 0.04) * (100 if plan.kind == "share" else 1)
    data += [trace for line, found in drawn for trace in _nonfinite(line, found, top, look.palette)]
    span = span or (float(min(s.step[0] for _, s in drawn)), float(max(s.step[-1] for _, s in drawn)))
    levels = [_level(level, i, plan.kind, span, look.palette) for i, level in enumerate(plan.levels)]
    data = [trace for level in levels for trace in level] + data
    return Chart(
        name=plan.name,
        title=plan.title,
        grain=_grain(plan, bucket, len(drawn)),
        summary="; ".join(_sentence(line, found, plan) for line, found in drawn) + ".",
        missing=None,
        legend=_legend(drawn, look.palette),
        figure={"data": data, "layout": layout(look, y=_axis(plan.kind, low, high, look), span=span)},
    )


def _grain(plan: Plan, bucket: int, lines: int) -> str:
    what = "last sample" if plan.sampled else "last value"
    band = ", the band spans min to max" if lines == 1 else ""
    said = grain(bucket, plan.fold or what + band, one="sampled update" if plan.sampled else "update")
    return f"{plan.unit.strip()} · {said}" if plan.unit else said


def _legend(drawn: Sequence[tuple[Line, Series]], palette: Palette) -> list[Key]:
    """A single line is told by the heading; what is not finite is told wherever it is marked."""
    lines = [line for line, _ in drawn] if len(drawn) > 1 else []
    keys = [Key(line.label, getattr(palette, line.colour), _KEY_MARKS[line.dash]) for line in lines]
    broken = any((found.nan + found.inf).any() for _, found in drawn)
    return [*keys, Key("NaN or infinite", palette.overflow, "cross")] if broken else keys


def nothing_recorded(plan: Plan, look: Look) -> Chart:
    return Chart(
        name=plan.name,
        title=plan.title,
        grain="",
        summary="Nothing has been recorded.",
        missing="Nothing has been recorded in this range.",
        figure={"data": [], "layout": layout(look, y=axis(look))},
    )


def percents(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values * 100


# What is drawn of a value.
_DRAWN: dict[Kind, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "linear": np.asarray,
    "log2": log2,
    "log10": log10,
    "share": percents,
}
_HOVERS: dict[Kind, str] = {
    "linear": "%{y:.5~g}",
    "log2": "%{customdata:.4~g}",
    "log10": "%{customdata:.4~g}",
    "share": "%{y:.3~g} %",
}


def drawn_values(values: NDArray[np.float64], kind: Kind) -> list[float | None]:
    return numbers(_DRAWN[kind](values))


def _window(found: Sequence[Series], plan: Plan) -> tuple[float, float]:
    """The range of the axis in what is drawn, but for shares, which :func:`share_axis` wants as they are."""
    values = np.concatenate([part for series in found for part in (series.min, series.max)])
    values = np.append(values, [level.value for level in plan.levels])
    low, high = bounds(values if plan.kind == "share" else _DRAWN[plan.kind](values)) or (0.0, 1.0)
    # Of nothing but zeros there is no share to make room for.
    room = (high - low) * 0.06 or abs(high) * 0.1 or (0.0 if plan.kind == "share" else 1.0)
    return low - room, high + room


def _axis(kind: Kind, low: float, high: float, look: Look) -> Json:
    if kind == "log2":
        return log2_axis(look, low, high, 5)
    if kind == "log10":
        return log10_axis(look, low, high)
    if kind == "share":
        return share_axis(look, high / 1.06)
    return axis(look) | {"range": [low, high], "nticks": 6, "tickformat": "~g" if high < 0.01 else ""}


def _stretches(found: Series, plan: Plan, bucket: int, every: int) -> list[Rows]:
    """The rows that one line joins, each stretch of them: more than one where samples are missing in between."""
    torn = holes(found.step, every, grain=bucket, around=AFTER_SKIP) if plan.sampled else np.zeros(len(found.step) - 1)
    return np.split(np.arange(len(found.step)), np.flatnonzero(torn) + 1)


def _traces(
    line: Line, found: Series, plan: Plan, bucket: int, stretches: Sequence[Rows], lines: int, palette: Palette
) -> list[Json]:
    colour: str = getattr(palette, line.colour)
    mains = [_joined(line, found, rows, plan, palette) for rows in stretches]
    # One band tells the extremes; three on top of each other tell nothing.
    if bucket == 1 or lines > 1 or plan.fold:
        return mains
    bands = (_band(found, rows, plan.kind, colour, palette) for rows in stretches)
    return [*(trace for band in bands for trace in band), *mains]


def _joined(line: Line, found: Series, rows: Rows, plan: Plan, palette: Palette) -> Json:
    label = plain(line.label, 60)
    main: Json = {
        "type": "scatter",
        "mode": "lines" if len(rows) > 1 else "lines+markers",
        "name": label,
        "x": found.step[rows].tolist(),
        "y": drawn_values(found.last[rows], plan.kind),
        "line": {"color": getattr(palette, line.colour), "width": 1.5, "dash": line.dash},
        # Some values come with samples only, and those that are not finite are marked: neither breaks the line.
        "connectgaps": True,
        "hovertemplate": f"{_HOVERS[plan.kind]}{plan.unit}<extra>{label.replace('%', '&#37;')}</extra>",
    }
    if plan.kind in ("log2", "log10"):
        main["customdata"] = numbers(found.last[rows])
    return main | PERCENT if plan.kind == "share" else main


def _band(found: Series, stretch: Rows, kind: Kind, colour: str, palette: Palette) -> list[Json]:
    """From the smallest to the largest value of each point that has one: a gap would tear the fill."""
    rows = stretch[found.n[stretch] > 0]
    edge: Json = {
        "type": "scatter",
        "mode": "lines",
        "hoverinfo": "skip",
        "line": {"width": 0},
        "x": found.step[rows].tolist(),
    }
    fill = {"fill": "tonexty", "fillcolor": palette.veil(colour, 0.2)}
    low, high = drawn_values(found.min[rows], kind), drawn_values(found.max[rows], kind)
    return [edge | {"y": low, "name": "lowest"}, edge | {"y": high, "name": "highest"} | fill]


def _level(level: Level, place: int, kind: Kind, span: Span, palette: Palette) -> list[Json]:
    """A line across, and its name at its right end, that of the next level at its left: they may lie close."""
    side = place % 2
    (y,) = drawn_values(np.array([level.value]), kind)
    colour: str = getattr(palette, level.colour)
    across: Json = {
        "type": "scatter",
        "mode": "lines",
        "name": level.label,
        "x": list(span),
        "y": [y, y],
        "hoverinfo": "skip",
        "line": {"color": colour, "width": 1, "dash": level.dash},
    }
    name: Json = {
        "type": "scatter",
        "mode": "text",
        "name": f"{level.label} label",
        "x": [span[1 - side]],
        "y": [y],
        "text": [level.label],
        "textposition": f"top {('left', 'right')[side]}",
        "textfont": {"color": colour, "size": 11},
        "hoverinfo": "skip",
        # The highest of what is drawn has its name above the axis.
        "cliponaxis": False,
    }
    return [across, name]


def _nonfinite(line: Line, found: Series, high: float, palette: Palette) -> list[Json]:
    rows = np.flatnonzero(found.nan + found.inf)
    if not rows.size:
        return []
    texts = [f"{found.nan[i]:,} NaN, {found.inf[i]:,} infinite" for i in rows]
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "not finite",
            "x": found.step[rows].tolist(),
            "y": [high] * len(texts),
            "text": texts,
            "cliponaxis": False,
            "marker": {"symbol": "x-thin", "size": 7, "line": {"width": 2, "color": palette.overflow}},
            "hovertemplate": f"%{{text}}<extra>{plain(line.label, 60).replace('%', '&#37;')}</extra>",
        }
    ]


def _sentence(line: Line, found: Series, plan: Plan) -> str:
    limits = bounds(np.concatenate([found.min, found.max]))
    if limits is None:
        return f"{line.label}: no finite value"
    low, high = (percent(v) if plan.kind == "share" else f"{v:.4g}" for v in limits)
    broken = int(found.nan.sum() + found.inf.sum())
    tail = f", {broken:,} values not finite" if broken else ""
    return f"{line.label} between {low} and {high}{plan.unit}{tail}"
