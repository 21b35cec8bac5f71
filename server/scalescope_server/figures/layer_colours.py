"""How the heat map's colours spread over a measure: what is coloured, between which limits, and the bar beside it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from scalescope_server.figures.chart import Json, Look, bounds, log2, log2_label, numbers, share_ticks
from scalescope_server.figures.measures import Scale
from scalescope_server.figures.palette import Palette

Values = NDArray[np.float64]

# Below this the ramp would stretch over rounding noise.
_LEAST_TOP = 1e-4
# Octaves beyond which headroom is ample, whatever it is.
_AMPLE = 16
# Decades of an update ratio: the colours' ends, and between which the usual ones are.
_RATIO_ENDS, _USUAL_RATIO = (-8, 0), (-4, -2)


def coloured(scale: Scale, values: Values, look: Look) -> Json:
    """The part of a heat map's trace that tells colours: ``z`` [rows][columns], limits, hover text and bar."""
    told = _SCALES[scale](values, look.palette)
    bar: Json = {
        "thickness": 8,
        "len": 1.0,
        "outlinewidth": 0,
        "tickfont": {"color": look.palette.quiet, "size": 10},
        "xpad": 6,
    }
    ticks = told.pop("ticks")
    return told | {"colorbar": bar | ticks if isinstance(ticks, dict) else bar}


def ramp(palette: Palette) -> list[list[object]]:
    return _spread(palette.ramp)


def _spread(colours: tuple[str, ...]) -> list[list[object]]:
    return [[i / (len(colours) - 1), colour] for i, colour in enumerate(colours)]


def _share(values: Values, palette: Palette) -> Json:
    top = max(float(np.nanmax(values)), _LEAST_TOP)
    return {
        "z": _rows(values * 100),
        "zmin": 0.0,
        "zmax": top * 100,
        "colorscale": ramp(palette),
        "hovertemplate": "%{y}<br>%{text}: %{z:.3~g} %<extra></extra>",
        "meta": {"per": 100},
        "ticks": share_ticks(top),
    }


def _count(values: Values, palette: Palette) -> Json:
    counted = np.log10(1.0 + values)
    most = max(float(np.nanmax(counted)), 1.0)
    marks = range(int(most) + 1)
    return {
        "z": _rows(counted),
        "customdata": _rows(values),
        "zmin": 0.0,
        "zmax": most,
        "colorscale": ramp(palette),
        "hovertemplate": "%{y}<br>%{text}: %{customdata:,.0f}<extra></extra>",
        "ticks": {"tickvals": [math.log10(1 + 10**k) for k in marks], "ticktext": [f"{10**k:,}" for k in marks]},
    }


def _log2(values: Values, palette: Palette) -> Json:
    z = log2(values)
    low, high = bounds(z) or (0.0, 1.0)
    marks = list(range(math.ceil(low), math.floor(high) + 1, max(round((high - low) / 5), 1)))
    return {
        "z": _rows(z),
        "customdata": _rows(values),
        "colorscale": ramp(palette),
        "hovertemplate": "%{y}<br>%{text}: %{customdata:.4~g}<extra></extra>",
        "ticks": {"tickvals": marks, "ticktext": [log2_label(mark) for mark in marks]},
    }


def _ratio(values: Values, palette: Palette) -> Json:
    """Blue where updates are so small that formats absorb them, red where weights are thrown about, between them a
    pale green.
    """
    with np.errstate(divide="ignore"):
        decades = np.log10(values)
    low, high = _RATIO_ENDS
    small, large = ((edge - low) / (high - low) for edge in _USUAL_RATIO)
    usual = palette.veil(palette.good, 0.25)
    colours = [[0.0, palette.flush], [small, usual], [large, usual], [1.0, palette.overflow]]
    marks = range(low, high + 1, 2)
    return {
        # An update of nothing at all is as small as can be shown.
        "z": _rows(np.clip(decades, low, high)),
        "customdata": _rows(values),
        "zmin": low,
        "zmax": high,
        "colorscale": colours,
        "hovertemplate": "%{y}<br>%{text}: %{customdata:.3~g} of the weights<extra></extra>",
        "ticks": {"tickvals": list(marks), "ticktext": [f"10<sup>{k}</sup>" if k else "1" for k in marks]},
    }


def _octaves(values: Values, palette: Palette) -> Json:
    """The ramp the other way round: its most is at the wall."""
    finite = np.where(np.isfinite(values), values, np.nan)
    return {
        "z": _rows(np.clip(finite, 0, _AMPLE)),
        "customdata": _rows(finite),
        "zmin": 0,
        "zmax": _AMPLE,
        "colorscale": _spread(palette.ramp[::-1]),
        "hovertemplate": "%{y}<br>%{text}: %{customdata:.3~g} octaves left<extra></extra>",
        "ticks": {"tickvals": [0, 1, 4, 8, 12, _AMPLE], "ticktext": ["wall", "1 oct", "4", "8", "12", f"≥ {_AMPLE}"]},
    }


def _rows(values: Values) -> list[list[float | None]]:
    return [numbers(row, 4) for row in values]


_SCALES: dict[Scale, Callable[[Values, Palette], Json]] = {
    "share": _share,
    "count": _count,
    "log2": _log2,
    "ratio": _ratio,
    "octaves": _octaves,
}
