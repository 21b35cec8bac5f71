"""The share of updates that were skipped, over the last hundred or so."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scalescope_server.figures.chart import (
    PERCENT,
    Chart,
    Json,
    Look,
    grain,
    layout,
    numbers,
    percent,
    share_axis,
)
from scalescope_server.figures.plans import Plan
from scalescope_server.figures.series import nothing_recorded, percents
from scalescope_server.store.records import Series

SKIP_RATE = "skip_rate"

# A rate over fewer updates jumps between 0 and 1; over more it lags behind what a reader wants to see.
SKIP_WINDOW = 100


def rate_window(bucket: int) -> int:
    """Over how many points of ``bucket`` updates a rate of skips is taken."""
    return max(SKIP_WINDOW // bucket, 1)


def skip_rate_chart(skipped: Series, bucket: int, look: Look, *, start: int = 0) -> Chart:
    """Skipped updates from ``start`` on as a share of the last ``SKIP_WINDOW`` or so, as whole points hold them.

    ``skipped`` should begin one window before ``start``; at the beginning of a run a window is shorter.
    """
    window = rate_window(bucket)
    title = f"Updates skipped, of the last {window * bucket:,}"
    shown = np.flatnonzero(skipped.step + bucket > start)
    if not shown.size:
        return nothing_recorded(Plan(SKIP_RATE, title, ()), look)
    rate = _rolling(skipped.sum, skipped.n.astype(np.float64), window)[shown]
    step = skipped.step[shown]
    trace: Json = {
        "type": "scatter",
        "mode": "lines",
        "name": "skipped",
        "x": step.tolist(),
        "y": numbers(percents(rate)),
        "line": {"color": look.palette.overflow, "width": 1.5},
        "fill": "tozeroy",
        "fillcolor": look.palette.veil(look.palette.overflow, 0.12),
        "hovertemplate": "%{y:.3~g} %<extra>skipped</extra>",
        **PERCENT,
    }
    total, updates = int(skipped.sum[shown].sum()), int(skipped.n[shown].sum())
    span, high = (float(step[0]), float(step[-1])), _settled(rate, step >= window * bucket)
    y = share_axis(look, high)
    cut = [] if high == rate.max() else [_cut(step, rate, y, look)]
    return Chart(
        name=SKIP_RATE,
        title=title,
        grain=grain(bucket, "their share"),
        summary=f"{total:,} of {updates:,} updates were skipped; at worst {percent(float(rate.max()))} of a window.",
        missing=None,
        figure={"data": [trace, *cut], "layout": layout(look, y=y, span=span)},
    )


def _settled(rate: NDArray[np.float64], whole: NDArray[np.bool_]) -> float:
    """The highest rate to make room for. The first windows hold few updates: a single skip would press all that
    follows flat.
    """
    highest, later = float(rate.max()), float(rate[whole].max(initial=0.0))
    return later if 0 < later < highest / 2 else highest


def _cut(step: NDArray[np.int64], rate: NDArray[np.float64], y: Json, look: Look) -> Json:
    """What the chart says of the part that leaves it above."""
    top = y["range"]
    return {
        "type": "scatter",
        "mode": "text",
        "name": "cut",
        "x": [int(step[0])],
        "y": top[1:] if isinstance(top, list) else [],
        "text": [f"↑ {percent(float(rate.max()))} of the first updates"],
        "textposition": "bottom right",
        "textfont": {"color": look.palette.overflow, "size": 12},
        "hoverinfo": "skip",
    }


def _rolling(count: NDArray[np.float64], whole: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """``count / whole`` over the last ``window`` points, fewer at the beginning."""
    summed, of = np.cumsum(count), np.cumsum(whole)
    summed[window:] = summed[window:] - summed[:-window]
    of[window:] = of[window:] - of[:-window]
    return summed / np.maximum(of, 1.0)
