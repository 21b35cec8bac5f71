"""The signature chart: the loss scale between the wall above it and the region below it.

Both walls come from the sampled gradients; the marks on the line are told in :mod:`.marks`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.formats import FP16

from scalescope_server.figures.chart import (
    Chart,
    Json,
    Key,
    Look,
    bounds,
    grain,
    layout,
    log2,
    log2_axis,
    numbers,
)
from scalescope_server.figures.marks import SYMBOLS, Mark, marks, power
from scalescope_server.figures.palette import Palette
from scalescope_server.figures.walls import Walls
from scalescope_server.store.records import EventRow, Series

# Pixels, up to how many marks: many marks of full size would cover the line they stand on.
_MARK_SIZES = ((9, 60), (7.5, 200), (6, math.inf))
_EMPTY = np.zeros(0, np.float64)


def scale_chart(
    series: Mapping[str, Series], bucket: int, events: Sequence[EventRow], walls: Sequence[Walls], look: Look
) -> Chart:
    """The loss scale over updates.

    Args:
        series: ``scale`` and, where there are any, ``skipped`` and ``amax``.
        bucket: updates per point of the series.
        events: skip, growth, backoff and scale_set of the range; ``None``-scaled ones are not drawn.
        walls: the flush wall at the sampled updates; may be empty.
    """
    scale = series.get("scale")
    if scale is None or not len(scale.step):
        return _missing(look)
    level, wall = log2(scale.last), _overflow_wall(series)
    found = marks(events, series, bucket)
    flush = [(w.step, w.flush) for w in walls if w.flush is not None]
    low, high = _window(scale, wall, flush)
    data = [
        *_flush_region(flush, low, look.palette),
        *_overflow_region(series, wall, high, look.palette),
        *_band(scale, bucket, look.palette),
        _line(scale, level, look.palette),
        _mark_trace(found, look.palette),
    ]
    return Chart(
        name="scale",
        title="Loss scale between its two walls",
        grain=grain(bucket),
        summary=_summary(scale, series.get("skipped")),
        step=int(scale.step[-1]),
        missing=None,
        legend=_legend(flush, wall, look.palette),
        figure={"data": data, "layout": _layout(scale, low, high, look)},
    )


def _legend(flush: Sequence[object], wall: NDArray[np.float64], palette: Palette) -> list[Key]:
    keys = [Key("doubled", palette.good, "up"), Key("skipped, halved", palette.overflow, "down")]
    keys += [Key("overflow wall", palette.overflow, "line")] if wall.size else []
    keys += [Key("flush wall: 0.1 % of non-zeros vanish", palette.flush, "dot")] if flush else []
    return keys


def _layout(scale: Series, low: float, high: float, look: Look) -> Json:
    span = (float(scale.step[0]), float(scale.step[-1]))
    return layout(look, y=log2_axis(look, low, high, 6 if look.compact else 9), span=span)


def _missing(look: Look) -> Chart:
    return Chart(
        name="scale",
        title="Loss scale",
        grain="",
        summary="This run has no loss scale.",
        step=None,
        missing="No loss scale has been recorded: bf16 and fp32 trainings run without a scaler.",
        figure={"data": [], "layout": layout(look, y=log2_axis(look, 0, 16))},
    )


def _overflow_wall(series: Mapping[str, Series]) -> NDArray[np.float64]:
    """log2(65520 / amax) at each point of ``amax``; at a skipped update no higher than its scale."""
    amax = series.get("amax")
    if amax is None:
        return _EMPTY
    wall = math.log2(FP16.overflow_from) - log2(amax.max)
    skipped, scale = series.get("skipped"), series["scale"]
    if skipped is None:
        return np.asarray(wall)
    # A value that overflowed is infinite and no longer counts into amax: the scale itself bounds the wall.
    over = skipped.step[skipped.sum > 0]
    lowest = log2(scale.min)[np.clip(np.searchsorted(scale.step, amax.step), 0, len(scale.step) - 1)]
    return np.where(np.isin(amax.step, over), np.fmin(wall, lowest), wall)


def _window(scale: Series, wall: NDArray[np.float64], flush: Sequence[tuple[int, float | None]]) -> tuple[float, float]:
    """The range of the axis: the scale and both walls, with room for marks above and below."""
    values = np.concatenate([log2(scale.min), log2(scale.max), wall, [f for _, f in flush if f is not None]])
    found = bounds(values) or (0.0, 16.0)
    return math.floor(found[0]) - 1.5, math.ceil(found[1]) + 2.0


def _line(scale: Series, level: NDArray[np.float64], palette: Palette) -> Json:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "loss scale",
        "x": scale.step.tolist(),
        "y": numbers(level),
        "customdata": numbers(scale.last, 9),
        "hovertemplate": "%{customdata:,}<extra>loss scale</extra>",
        "line": {"color": palette.ink, "width": 2, "shape": "hv"},
    }


def _band(scale: Series, bucket: int, palette: Palette) -> list[Json]:
    """From the lowest to the highest scale inside each point, once a point holds more than one update."""
    if bucket == 1:
        return []
    edge = {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "line": {"width": 0, "shape": "hv"}}
    x = scale.step.tolist()
    fill = {"fill": "tonexty", "fillcolor": palette.veil(palette.ink, 0.18)}
    return [
        edge | {"x": x, "y": numbers(log2(scale.min)), "name": "lowest"},
        edge | {"x": x, "y": numbers(log2(scale.max)), "name": "highest"} | fill,
    ]


def _overflow_region(
    series: Mapping[str, Series], wall: NDArray[np.float64], high: float, palette: Palette
) -> list[Json]:
    if not wall.size:
        return []
    x = series["amax"].step.tolist()
    trace = {"type": "scatter", "mode": "lines", "x": x}
    return [
        trace
        | {
            "name": "overflow wall",
            "y": numbers(wall),
            "connectgaps": True,
            "line": {"color": palette.overflow, "width": 1.25},
            "hovertemplate": "2^%{y:.1f}<extra>overflows from</extra>",
        },
        trace
        | {
            "name": "above the wall",
            "y": [high] * len(x),
            "line": {"width": 0},
            "hoverinfo": "skip",
            "fill": "tonexty",
            "fillcolor": palette.veil(palette.overflow, 0.10),
        },
    ]


def _flush_region(flush: Sequence[tuple[int, float | None]], low: float, palette: Palette) -> list[Json]:
    if not flush:
        return []
    trace = {"type": "scatter", "mode": "lines", "x": [step for step, _ in flush]}
    return [
        trace | {"name": "below the wall", "y": [low] * len(flush), "line": {"width": 0}, "hoverinfo": "skip"},
        trace
        | {
            "name": "flush wall",
            "y": [wall for _, wall in flush],
            "line": {"color": palette.flush, "width": 1.25, "shape": "hv", "dash": "dot"},
            "hovertemplate": "2^%{y:.0f}<extra>0.1 % vanish below</extra>",
            "fill": "tonexty",
            "fillcolor": palette.veil(palette.flush, 0.10),
        },
    ]


def _mark_trace(found: Sequence[Mark], palette: Palette) -> Json:
    colours = {
        "skip": palette.overflow,
        "backoff": palette.overflow,
        "growth": palette.good,
        "scale_set": palette.warning,
    }
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "changes",
        "x": [mark.step for mark in found],
        "y": numbers([mark.y for mark in found]),
        "text": [mark.text for mark in found],
        "hovertemplate": "%{text}<extra></extra>",
        "cliponaxis": False,
        "marker": {
            "size": next(size for size, most in _MARK_SIZES if len(found) <= most),
            "symbol": [SYMBOLS[mark.kind] for mark in found],
            "color": [colours[mark.kind] for mark in found],
            "line": {"width": 1, "color": palette.panel},
        },
    }


def _summary(scale: Series, skipped: Series | None) -> str:
    lost = int(skipped.sum.sum()) if skipped is not None else 0
    found = bounds(np.concatenate([scale.min, scale.max]))
    if found is None:
        return "The loss scale was never finite."
    low, high = map(power, found)
    first, last = int(scale.step[0]), int(scale.step[-1])
    return (
        f"From update {first:,} to {last:,} the loss scale lay between {low} and {high}; {lost:,} updates were skipped."
    )
