"""What the hook costs: its share of the training thread's time in each update, beside the budget it keeps to.

Ordinary and sampled updates lie decades apart, so the axis is of logarithms. What is kept to the budget is the mean
over time; a sampled update may well take more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalescope_server.figures.chart import (
    PERCENT,
    Chart,
    Json,
    Key,
    Look,
    axis,
    grain,
    layout,
    log10,
    numbers,
    percent,
)
from scalescope_server.figures.palette import Palette
from scalescope_server.figures.plans import Plan
from scalescope_server.figures.series import Span, nothing_recorded
from scalescope_server.store.records import Series

# A sample of gradients tells ``amax``, so its updates are those that were sampled.
HOOK_SERIES = ("hook_ms", "step_ms", "amax")
BUDGET = 0.01
# What is cheaper than a millionth is drawn as that.
_LEAST = 1e-6

Real = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Costs:
    """At each step, float64: the share of its updates' time, that of the costliest; and which were sampled, bool."""

    step: NDArray[np.int64]
    mean: Real
    most: Real
    sampled: NDArray[np.bool_]
    whole: float


def hook_cost_chart(
    plan: Plan, series: Mapping[str, Series], bucket: int, look: Look, *, span: Span | None = None
) -> Chart:
    """``series``: those of ``HOOK_SERIES``, where there are any; ``bucket`` updates a point."""
    costs = _costs(series)
    if not len(costs.step):
        return nothing_recorded(plan, look)
    span = span or (float(costs.step[0]), float(costs.step[-1]))
    lines = _exact(costs, look.palette) if bucket == 1 else _folded(costs, look.palette)
    high = math.ceil(max(float(log10(costs.most).max()), math.log10(BUDGET) + 0.5))
    low = math.floor(min(float(log10(costs.mean).min()), math.log10(BUDGET) - 1))
    return Chart(
        name=plan.name,
        title=plan.title,
        grain=f"{percent(costs.whole)} of all time shown · {grain(bucket, 'their mean, and the costliest of them')}",
        summary=_summary(costs, bucket),
        missing=None,
        legend=_legend(bucket, look.palette),
        figure={
            "data": [*_budget(span, look.palette), *lines],
            "layout": layout(look, y=_axis(look, low, high), span=span),
        },
    )


def _costs(series: Mapping[str, Series]) -> _Costs:
    """Of the updates, or buckets, of which both times are known."""
    hook, whole, sampled = (series.get(name) for name in HOOK_SERIES)
    if hook is None or whole is None:
        nothing = np.zeros(0)
        return _Costs(np.zeros(0, np.int64), nothing, nothing, np.zeros(0, np.bool_), 0.0)
    step, of_hook, of_whole = np.intersect1d(hook.step, whole.step, return_indices=True)
    usual = whole.sum[of_whole] / np.maximum(whole.n[of_whole], 1)
    known = (usual > 0) & (hook.n[of_hook] > 0)
    step, usual, rows = step[known], usual[known], of_hook[known]
    spent = hook.sum[rows]
    return _Costs(
        step,
        np.maximum(spent / hook.n[rows] / usual, _LEAST),
        np.maximum(hook.max[rows] / usual, _LEAST),
        np.isin(step, [] if sampled is None else sampled.step),
        float(spent.sum() / max((usual * hook.n[rows]).sum(), _LEAST)),
    )


def _exact(costs: _Costs, palette: Palette) -> list[Json]:
    """Each update, the sampled ones as marks of their own."""
    ordinary = ~costs.sampled
    line = _trace("ordinary update", costs.step[ordinary], costs.mean[ordinary])
    marks = _trace("sampled update", costs.step[costs.sampled], costs.mean[costs.sampled])
    return [
        line | {"mode": "lines", "line": {"color": palette.ink, "width": 1.5}, "connectgaps": True},
        marks | {"mode": "markers", "marker": {"color": palette.accent, "size": 6, "symbol": "circle"}},
    ]


def _folded(costs: _Costs, palette: Palette) -> list[Json]:
    mean = _trace("mean", costs.step, costs.mean)
    most = _trace("costliest update", costs.step, costs.most)
    return [
        mean | {"mode": "lines", "line": {"color": palette.ink, "width": 1.5}},
        most | {"mode": "lines", "line": {"color": palette.accent, "width": 1.5, "dash": "dot"}},
    ]


def _trace(name: str, step: NDArray[np.int64], share: Real) -> Json:
    return {
        "type": "scatter",
        "name": name,
        "x": step.tolist(),
        "y": numbers(log10(share)),
        "customdata": numbers(share * 100),
        "hovertemplate": f"%{{customdata:.3~g}} %<extra>{name}</extra>",
        **PERCENT,
    }


def _budget(span: Span, palette: Palette) -> list[Json]:
    y = math.log10(BUDGET)
    line = {"color": palette.warning, "width": 1, "dash": "dash"}
    text = {"textposition": "top left", "textfont": {"color": palette.warning, "size": 11}}
    fixed: Json = {"type": "scatter", "hoverinfo": "skip"}
    return [
        fixed | {"mode": "lines", "name": "budget", "x": list(span), "y": [y, y], "line": line},
        fixed | {"mode": "text", "name": "budget label", "x": [span[1]], "y": [y], "text": ["budget: 1 %"]} | text,
    ]


def _axis(look: Look, low: int, high: int) -> Json:
    decades = list(range(low, high + 1))
    labels = [f"{10.0 ** (decade + 2):.6g} %" for decade in decades]
    told = {"range": [low - 0.1, high + 0.1], "tickmode": "array", "tickvals": decades, "ticktext": labels}
    return axis(look) | told


def _legend(bucket: int, palette: Palette) -> list[Key]:
    if bucket == 1:
        return [Key("ordinary", palette.ink, "line"), Key("sampled", palette.accent, "point")]
    return [Key("mean", palette.ink, "line"), Key("costliest", palette.accent, "dot")]


def _summary(costs: _Costs, bucket: int) -> str:
    told = f"The hook took {percent(costs.whole)} of the time shown; it samples less often where that nears 1 %"
    most = f"the costliest update took {percent(float(costs.most.max()))}"
    if bucket > 1 or not costs.sampled.any() or costs.sampled.all():
        return f"{told}; {most}."
    ordinary = float(np.median(costs.mean[~costs.sampled]))
    sampled = float(np.median(costs.mean[costs.sampled]))
    return f"{told}; an ordinary update {percent(ordinary)}, a sampled one {percent(sampled)} (medians); {most}."
