"""One parameter's exponent histogram over time, with fp16's limits drawn on it.

Each column shows the gradient as it stood at the scale the column ended with; samples of the column at another
scale are shifted to it, since a scale of 2^k moves every exponent by k. The limits are three lines, so a page
can move them to where another scale would put them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scalescope.numerics.exponents import BINS, MIN_EXPONENT, Histograms
from scalescope.numerics.formats import FP16

from scalescope_server.figures.chart import Chart, Json, Look, axis, layout, log2_axis, numbers
from scalescope_server.figures.grid import Grid, column_grain
from scalescope_server.figures.walls import octaves
from scalescope_server.store.records import ParameterRow, SampleBucket

# Colours run over the decades of a share; one value in a million is the faintest that is drawn.
_FAINTEST = -6.0


class Reading(Struct, frozen=True, kw_only=True):
    """One bucket of the parameter at one scale, for the page's slider: ``counts[i]`` is of exponent ``low + i``."""

    step: int
    scale: float | None
    periodic: bool
    samples: int
    low: int
    counts: list[int]
    zero: int
    inf: int
    nan: int
    amax: float


class Column(NamedTuple):
    """A column as drawn: share of all elements per exponent, at ``octaves`` = log2 of its scale."""

    shares: NDArray[np.float64]
    octaves: float


def layer_chart(
    parameter: ParameterRow, grid: Grid[SampleBucket], look: Look, *, missing: str = "No samples."
) -> Chart:
    """The histogram of ``parameter``, the only row of the grid's tables; ``missing`` where it has no sample."""
    columns = [_column(column) for column in grid.columns]
    drawn = [column for column in columns if column is not None]
    if not drawn:
        return _missing(look, missing)
    used = np.flatnonzero(np.max([column.shares for column in drawn], axis=0))
    lowest = int(used[0]) + MIN_EXPONENT if used.size else FP16.flush_exponent
    highest = int(used[-1]) + MIN_EXPONENT if used.size else 16
    low, high = min(lowest, FP16.flush_exponent) - 2, max(highest + 1, 16) + 2
    return Chart(
        name="histogram",
        title="Exponents of the scaled gradient",
        grain=f"share of all elements · {column_grain(grid, 'its samples added at the scale it ended with')}",
        summary=_summary(parameter, drawn[-1]),
        missing=None,
        figure=_figure(columns, grid, (low, high), look),
    )


def readings(buckets: Sequence[SampleBucket]) -> list[Reading]:
    """What the slider reckons with: row 0 of each bucket, trimmed to the exponents in use."""
    return [_reading(bucket) for bucket in buckets if bucket.samples[0]]


def _reading(bucket: SampleBucket) -> Reading:
    table = bucket.table
    used = np.flatnonzero(table.counts[0])
    first, end = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 0)
    return Reading(
        step=bucket.step,
        scale=bucket.scale,
        periodic=bucket.periodic,
        samples=int(bucket.samples[0]),
        low=first + MIN_EXPONENT,
        counts=table.counts[0, first:end].tolist(),
        zero=int(table.zero[0]),
        inf=int(table.inf[0]),
        nan=int(table.nan[0]),
        amax=float(table.amax[0]),
    )


def _column(buckets: Sequence[SampleBucket]) -> Column | None:
    sampled = [b for b in buckets if b.samples[0]]
    # A skipped step's sample only where there is no other: its infinities say nothing of a usual step.
    chosen = [b for b in sampled if b.periodic] or sampled
    if not chosen:
        return None
    level = octaves(chosen[-1].scale) or 0.0
    total = Histograms.empty(1)
    for bucket in chosen:
        total = total.merge(bucket.table.shift(round(level - (octaves(bucket.scale) or 0.0))))
    return Column(total.counts[0] / max(int(total.numel[0]), 1), level)


def _missing(look: Look, why: str) -> Chart:
    return Chart(
        name="histogram",
        title="Exponents of the scaled gradient",
        grain="",
        summary=why,
        missing=why,
        figure={"data": [], "layout": layout(look, y=axis(look))},
    )


def _figure(columns: Sequence[Column | None], grid: Grid[SampleBucket], window: tuple[int, int], look: Look) -> Json:
    low, high = window
    rows = range(max(low, MIN_EXPONENT), min(high, MIN_EXPONENT + BINS))
    palette = look.palette
    shares = np.array([np.full(BINS, np.nan) if c is None else c.shares for c in columns])
    shares = shares[:, [e - MIN_EXPONENT for e in rows]].T
    z = _decades(shares)
    heat: Json = {
        "type": "heatmap",
        "name": "share",
        "x": grid.edges,
        "y": [e + 0.5 for e in rows],
        "z": [numbers(row, 4) for row in z],
        "customdata": [numbers(row, 3) for row in np.where(np.isnan(z), np.nan, shares * 100)],
        "zmin": _FAINTEST,
        "zmax": 0.0,
        "colorscale": [[i / (len(palette.ramp) - 1), c] for i, c in enumerate(palette.ramp)],
        "hoverongaps": False,
        "hovertemplate": "%{text}<br>near 2<sup>%{y:.1f}</sup>: %{customdata:.2~g} % of all<extra></extra>",
        "meta": {"per": 100, "columns": grid.told()},
        "colorbar": {
            "thickness": 8,
            "len": 1.0,
            "outlinewidth": 0,
            "xpad": 6,
            "tickvals": [-6, -4, -2, -1, 0],
            "ticktext": ["10<sup>-6</sup>", "0.01 %", "1 %", "10 %", "all"],
            "tickfont": {"color": palette.quiet, "size": 10},
        },
    }
    frame = layout(look, y=log2_axis(look, low, high, 8), x={"range": list(grid.span), "showgrid": False})
    levels = [None if column is None else column.octaves for column in columns]
    frame |= {"hovermode": "closest", "meta": {"octaves": levels}}
    return {"data": [heat, *_limits(grid, look), *_limit_names(grid, look)], "layout": frame}


def _decades(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """log10 of a share; nothing at all, and columns without a sample, are gaps."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log10(shares)
    return np.where(np.isfinite(found), np.maximum(found, _FAINTEST), np.nan)


_LIMITS = (
    ("overflow", 16, "overflow", "solid"),
    ("subnormal", FP16.min_normal_exponent, "warning", "dash"),
    ("flush", FP16.flush_exponent, "flush", "dot"),
)
_LIMIT_NAMES = ("overflows above", "subnormal below", "flushes below")


def _limits(grid: Grid[SampleBucket], look: Look) -> list[Json]:
    """The three limits as lines over the columns' edges, in the order the page's slider moves them."""
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": grid.edges,
            "y": [exponent] * len(grid.edges),
            "hoverinfo": "skip",
            "line": {"color": getattr(look.palette, colour), "width": 1.5, "dash": dash, "shape": "hv"},
        }
        for name, exponent, colour, dash in _LIMITS
    ]


def _limit_names(grid: Grid[SampleBucket], look: Look) -> list[Json]:
    halo = ", ".join([f"0 0 3px {look.palette.panel}"] * 4)
    return [
        {
            "type": "scatter",
            "mode": "text",
            "name": f"{name} label",
            "x": [grid.span[1]],
            "y": [exponent],
            "text": [label],
            "textposition": "top left",
            # The limit may lie over the darkest cells.
            "textfont": {"color": getattr(look.palette, colour), "size": 11, "shadow": halo},
            "hoverinfo": "skip",
        }
        for (name, exponent, colour, _), label in zip(_LIMITS, _LIMIT_NAMES, strict=True)
    ]


def _summary(parameter: ParameterRow, last: Column) -> str:
    centre = float((last.shares * np.arange(MIN_EXPONENT, MIN_EXPONENT + BINS)).sum() / max(last.shares.sum(), 1e-300))
    scale = f"2^{last.octaves:g}"
    return f"Most gradients of {parameter.name} lie near 2^{centre:.0f}, as they stood at scale {scale}."
