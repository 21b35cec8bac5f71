"""Where the time of an update goes: forward, backward and optimizer stacked below the whole.

What is left between the stack and the line is everything else: data, logging, and what was not timed. Areas add up,
so a point tells means, where other charts tell the last value.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from scalescope_server.figures.chart import Chart, Json, Key, Look, axis, bounds, grain, layout, numbers
from scalescope_server.figures.palette import Palette
from scalescope_server.figures.plans import Line, Plan
from scalescope_server.figures.series import Span
from scalescope_server.store.records import Series

TIMES = "step_ms"

# Three of the colours for amounts, far apart in lightness.
_SHADES = (1, 3, 5)


def is_split(series: Mapping[str, Series]) -> bool:
    """Whether any part of the updates was timed."""
    return any(name in series and len(series[name].step) for name in ("forward_ms", "backward_ms", "optimizer_ms"))


def times_chart(
    plan: Plan, series: Mapping[str, Series], bucket: int, look: Look, *, span: Span | None = None
) -> Chart:
    """``plan``'s first line is the whole, the others its parts; those without values are left out."""
    whole, *parts = [(line, series[line.series]) for line in plan.lines]
    timed = [(line, found) for line, found in parts if len(found.step)]
    shades = [look.palette.ramp[shade] for (_, found), shade in zip(parts, _SHADES, strict=True) if len(found.step)]
    data = [_area(line, found, shade, look.palette) for (line, found), shade in zip(timed, shades, strict=True)]
    drawn = timed
    if len(whole[1].step):
        data.append(_line(*whole, look.palette))
        drawn = [*timed, whole]
    top = max((found[1] for _, each in drawn if (found := bounds(_means(each)))), default=1.0)
    span = span or (float(min(each.step[0] for _, each in drawn)), float(max(each.step[-1] for _, each in drawn)))
    keys = [Key(line.label, shade, "area") for (line, _), shade in zip(timed, shades, strict=True)]
    return Chart(
        name=plan.name,
        title=plan.title,
        grain=f"ms · {grain(bucket, 'their mean')}",
        summary=_summary(drawn),
        missing=None,
        legend=[*keys, *([Key(whole[0].label, look.palette.ink, "line")] if len(whole[1].step) else [])],
        figure={
            "data": data,
            "layout": layout(look, y=axis(look) | {"range": [0, top * 1.06 or 1.0], "nticks": 6}, span=span),
        },
    )


def _means(found: Series) -> NDArray[np.float64]:
    return found.sum / np.maximum(found.n, 1)


def _area(line: Line, found: Series, shade: str, palette: Palette) -> Json:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": line.label,
        "x": found.step.tolist(),
        "y": numbers(_means(found)),
        "stackgroup": "parts",
        # A part may be timed at sampled updates only.
        "stackgaps": "interpolate",
        "fillcolor": shade,
        "line": {"width": 0.5, "color": palette.panel},
        "hovertemplate": f"%{{y:.4~g}} ms<extra>{line.label}</extra>",
    }


def _line(line: Line, found: Series, palette: Palette) -> Json:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": line.label,
        "x": found.step.tolist(),
        "y": numbers(_means(found)),
        "line": {"width": 1.5, "color": palette.ink},
        "hovertemplate": f"%{{y:.4~g}} ms<extra>{line.label}</extra>",
    }


def _summary(drawn: list[tuple[Line, Series]]) -> str:
    told = [f"{line.label} {float(each.sum.sum()) / max(int(each.n.sum()), 1):.3g} ms" for line, each in drawn]
    return f"On average: {', '.join(told)}."
