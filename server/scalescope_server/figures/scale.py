"""The signature chart: the loss scale between the wall above it and the region below it.

Both walls come from the sampled gradients; the marks on the line are told in :mod:`.marks`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from scalescope_server.figures.cadence import AFTER_SKIP, holes
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
from scalescope_server.figures.regions import Wall, far_walls, flush_region, overflow_region
from scalescope_server.figures.walls import Walls
from scalescope_server.store.records import EventRow, Series

NO_SCALER = "No loss scale has been recorded: this training has no scaler, as bf16 and fp32 ones need none."

# A wall farther from the scale than this leaves the chart, which says where it is: drawn, it would press the
# scale's own movement flat.
NEAR_OCTAVES = 6.0

# Pixels, up to how many marks: many marks of full size would cover the line they stand on.
_MARK_SIZES = ((9, 60), (8, 250), (7, math.inf))


def scale_chart(
    series: Mapping[str, Series],
    bucket: int,
    events: Sequence[EventRow],
    walls: Sequence[Walls],
    look: Look,
    *,
    missing: str = NO_SCALER,
) -> Chart:
    """The loss scale over updates.

    Args:
        series: ``scale`` and, where there is any, ``skipped``.
        bucket: updates per point of the series.
        events: skip, growth, backoff and scale_set of the range; ``None``-scaled ones are not drawn.
        walls: both walls at the sampled updates; may be empty.
        missing: what to say where there is no scale to draw.
    """
    scale = series.get("scale")
    if scale is None or not len(scale.step):
        return _missing(look, missing)
    level, last = log2(scale.last), int(scale.step[-1])
    overflow, flush = _standing(_overflow_wall(series, walls), last), _standing(_flush_wall(walls), last)
    low, high = _window(scale, overflow, flush)
    found = marks(events, series, bucket)
    data = [
        *flush_region(flush, low, look.palette),
        *overflow_region(overflow, high, look.palette),
        *_band(scale, bucket, look.palette),
        _line(scale, level, look.palette),
        _mark_trace(found, look.palette),
        *far_walls(overflow, flush, (int(scale.step[0]), low, high), look.palette),
    ]
    return Chart(
        name="scale",
        title="Loss scale between its two walls",
        grain=grain(bucket),
        summary=_summary(scale, series.get("skipped")),
        missing=None,
        legend=_legend(flush, overflow, found, look.palette),
        figure={"data": data, "layout": _layout(scale, low, high, look)},
    )


def _legend(flush: Wall, overflow: Wall, found: Sequence[Mark], palette: Palette) -> list[Key]:
    keys = [Key("doubled", palette.good, "up"), Key("skipped, halved", palette.overflow, "down")]
    if any(mark.kind == "nonfinite" for mark in found):
        keys.append(Key("non-finite, not skipped", palette.warning, "cross"))
    keys += [Key("overflow wall", palette.overflow, "line")] if overflow else []
    keys += [Key("flush wall: 0.1 % of non-zeros vanish", palette.flush, "dot")] if flush else []
    return keys


def _layout(scale: Series, low: float, high: float, look: Look) -> Json:
    span = (float(scale.step[0]), float(scale.step[-1]))
    return layout(look, y=log2_axis(look, low, high, 6 if look.compact else 9), span=span)


def _missing(look: Look, why: str) -> Chart:
    return Chart(
        name="scale",
        title="Loss scale",
        grain="",
        summary=why,
        missing=why,
        figure={"data": [], "layout": layout(look, y=log2_axis(look, 0, 16))},
    )


def _overflow_wall(series: Mapping[str, Series], walls: Sequence[Walls]) -> Wall:
    """The wall at each sample, and at each skipped update no higher than its scale: what overflowed there may be
    an output gradient, of which no sample tells.
    """
    found: Wall = {}
    for at in walls:
        if at.overflow is not None:
            found[at.step] = min(at.overflow, found.get(at.step, math.inf))
    skipped, scale = series.get("skipped"), series["scale"]
    if skipped is not None:
        over = skipped.step[skipped.sum > 0]
        lowest = log2(scale.min)[np.clip(np.searchsorted(scale.step, over), 0, len(scale.step) - 1)]
        for step, level in zip(over.tolist(), lowest.tolist(), strict=True):
            if math.isfinite(level):
                found[step] = min(level, found.get(step, math.inf))
    return dict(sorted(found.items()))


def _flush_wall(walls: Sequence[Walls]) -> Wall:
    found: Wall = {}
    for at in walls:
        if at.flush is not None:
            found[at.step] = max(at.flush, found.get(at.step, -math.inf))
    return found


def _standing(wall: Wall, last: int) -> Wall:
    """The newest one stands until the ``last`` update too, unless a sample should have told another by then."""
    if not wall or max(wall) >= last or holes([*wall, last], 1, around=AFTER_SKIP)[-1]:
        return wall
    return wall | {last: wall[max(wall)]}


def _window(scale: Series, *walls: Wall) -> tuple[float, float]:
    """The range of the axis: the scale and what of the walls is near it, with room for marks above and below."""
    low, high = bounds(np.concatenate([log2(scale.min), log2(scale.max)])) or (0.0, 16.0)
    near = [y for wall in walls for y in wall.values() if low - NEAR_OCTAVES <= y <= high + NEAR_OCTAVES]
    return math.floor(min([low, *near])) - 1.5, math.ceil(max([high, *near])) + 2.0


def _line(scale: Series, level: NDArray[np.float64], palette: Palette) -> Json:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "loss scale",
        "x": scale.step.tolist(),
        "y": numbers(level),
        "customdata": numbers(scale.last, 9),
        "hovertemplate": "%{customdata:,} = 2<sup>%{y:.4~g}</sup><extra>loss scale</extra>",
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


def _mark_trace(found: Sequence[Mark], palette: Palette) -> Json:
    colours = {
        "skip": palette.overflow,
        "backoff": palette.overflow,
        "growth": palette.good,
        "scale_set": palette.warning,
        "nonfinite": palette.warning,
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
            "line": {"width": 0.5, "color": palette.panel},
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
