"""What every figure shares: the answer it comes in, its axes, and text that Plotly must not read as markup.

Plotly reads a few tags in any label (``<a href>``, ``<b>``, ``<sup>``), so every name that came from a trainer
passes :func:`plain` before it enters a figure. Values of a log2 axis are exponents on a linear axis, since
Plotly's own log axis counts in tens.
"""

from __future__ import annotations

import html
import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from scalescope_server.figures.palette import Palette

Json = dict[str, object]

# Of a trace: its numbers are percentages, since Plotly writes shares as "7.6%". The table behind it has shares again.
PERCENT: Json = {"meta": {"per": 100}}
# Fixed for ever: the page's zoom and hidden lines survive every redraw.
UI_REVISION = "scalescope"
MONOSPACED = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
# Over fewer octaves, powers of two leave an axis almost bare.
_FEW_OCTAVES = 3.0
_FEW_DECADES = 2.0
# Updates in view, of which each has a mark of its own.
_FEW = 9
_TICK_STEPS = (1, 2, 4, 5, 8, 10, 16, 20, 32, 64)
# Beyond it, 2.0**x is no float.
_LARGEST_EXPONENT = 1023.0
# Larger numbers are read as powers: of two where they are such, from 2^12 on, else of ten.
_LARGEST_COUNT, _LARGEST_SPELLED = 1e9, 12
_LONGEST_AMOUNT = 60
_EPS = sys.float_info.epsilon
_POWERS = np.array([float(f"1e{power}") for power in range(23)])
# Where a share is nothing throughout, an axis of fractions of a percent would look like a measurement.
_LEAST_SHARE, _TOP_OF_NOTHING = 1e-4, 0.01


class Key(Struct, frozen=True):
    """One entry of a legend: what a mark of this colour and form means."""

    label: str
    colour: str
    mark: Literal["line", "dash", "dot", "up", "down", "cross", "band", "area", "point", "ring"]


class Chart(Struct, frozen=True, kw_only=True):
    """A figure and what a reader must know of it.

    Attributes:
        name: the chart's name in addresses and answers.
        title: its heading.
        grain: what one point stands for.
        summary: the figure in one sentence, for those who do not see it.
        missing: why there is nothing to draw, or None.
        legend: what the marks mean, where the heading does not say it.
        figure: ``{"data": [...], "layout": {...}}`` as Plotly takes it.
    """

    name: str
    title: str
    grain: str
    summary: str
    missing: str | None
    figure: Json
    legend: list[Key] = []


@dataclass(frozen=True, slots=True)
class Look:
    """How a figure is drawn: its colours, and whether it must fit a phone."""

    palette: Palette
    compact: bool = False


def plain(text: str, limit: int = 512) -> str:
    """``text`` as Plotly shows it literally: no tags, no line breaks; the middle is cut beyond ``limit``."""
    one_line = " ".join(text.split())
    if len(one_line) > limit:
        tail = (limit - 1) * 2 // 3
        one_line = f"{one_line[: limit - 1 - tail]}…{one_line[-tail:]}"
    return html.escape(one_line, quote=False)


def log2_label(exponent: float) -> str:
    """A power of two in the markup that Plotly reads."""
    return "1" if exponent == 0 else f"2<sup>{exponent:g}</sup>"


def log2_axis(look: Look, low: float, high: float, ticks: int = 7) -> Json:
    """A linear axis of exponents from ``low`` to ``high``, its ticks at powers of two, or at round numbers
    where fewer than three octaves are shown.
    """
    span = max(high - low, 1.0)
    if span < _FEW_OCTAVES:
        return axis(look) | {"range": [low, high], "tickmode": "array"} | _round_ticks(low, high)
    step = next((s for s in _TICK_STEPS if span / s <= ticks), 128)
    values = list(range(math.ceil(low / step) * step, math.floor(high) + 1, step))
    labels = [log2_label(value) for value in values]
    return axis(look) | {"range": [low, high], "tickmode": "array", "tickvals": values, "ticktext": labels}


def log10_axis(look: Look, low: float, high: float, ticks: int = 5) -> Json:
    """A linear axis of decimal exponents from ``low`` to ``high``, its ticks at powers of ten, or at round numbers
    where fewer than two decades are shown.
    """
    if high - low < _FEW_DECADES:
        values = [value for value in _round_values(10.0**low, 10.0**high) if value > 0]
        told = {"tickvals": [math.log10(value) for value in values], "ticktext": [f"{value:.6g}" for value in values]}
        return axis(look) | {"range": [low, high], "tickmode": "array"} | told
    step = max(math.ceil((high - low) / ticks), 1)
    decades = list(range(math.ceil(low / step) * step, math.floor(high) + 1, step))
    labels = ["1" if decade == 0 else f"10<sup>{decade}</sup>" for decade in decades]
    return axis(look) | {"range": [low, high], "tickmode": "array", "tickvals": decades, "ticktext": labels}


def _round_ticks(low: float, high: float) -> Json:
    """Ticks at round numbers, evenly spaced as numbers, labelled with the numbers themselves."""
    values = [value for value in _round_values(2.0**low, 2.0 ** min(high, _LARGEST_EXPONENT)) if value > 0]
    return {"tickvals": [math.log2(value) for value in values], "ticktext": [f"{value:.6g}" for value in values]}


def _round_values(low: float, high: float) -> list[float]:
    """Two to seven multiples of 1, 2 or 5 times a power of ten, from ``low`` to ``high``; one where no float can be
    told from the next.
    """
    finest = (high - low) / 6
    if finest < max(high * _EPS, sys.float_info.min):
        return [low]
    decade = 10.0 ** math.floor(math.log10(finest))
    step = next((s * decade for s in (1, 2, 5) if s * decade >= finest), 10 * decade)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def axis(look: Look) -> Json:
    """A vertical axis without a zoom of its own: time is what a reader zooms."""
    palette = look.palette
    return {
        "gridcolor": palette.grid,
        "zeroline": False,
        "linecolor": palette.grid,
        "tickfont": {"color": palette.quiet, "size": 11},
        "fixedrange": True,
        "automargin": False,
        # Whether labels overflow or must turn, Plotly finds out by measuring each: half the time of a redraw.
        "ticklabeloverflow": "allow",
        "tickangle": 0,
        "hoverformat": ".4~g",
    }


def share_axis(look: Look, highest: float) -> Json:
    """An axis of percentages for shares up to ``highest`` (a share, 0 to 1)."""
    top = min(max(highest * 1.15, _LEAST_SHARE), 1.05) if highest > 0 else _TOP_OF_NOTHING
    return axis(look) | {"range": [-top * 3, top * 100], "tickmode": "array"} | share_ticks(top)


def share_ticks(top: float) -> Json:
    """Ticks from 0 to the share ``top``, labelled as percentages are everywhere on the pages: "0.5 %"."""
    values = [value * 100 for value in _round_values(0.0, top)]
    return {"tickvals": values, "ticktext": [f"{value:.6g} %" for value in values]}


def percent(share: float) -> str:
    """A share in a sentence."""
    return f"{share * 100:.3g} %"


def layout(
    look: Look, *, y: Json, span: tuple[float, float] | None = None, left: int = 52, x: Json | None = None
) -> Json:
    """The layout of a chart over updates.

    Args:
        span: the first and last update drawn, None to fit the data.
        left: pixels for the labels of ``y``.
        x: settings of the time axis beside or instead of the usual ones.
    """
    palette = look.palette
    time = axis(look) | {
        "fixedrange": False,
        "tickformat": ",d",
        "unifiedhovertitle": {"text": "update %{x:,d}"},
        "hoverformat": ",d",
        "nticks": 5 if look.compact else 9,
    }
    if span is not None:
        room = max((span[1] - span[0]) * 0.01, 0.5)
        time |= {"range": [span[0] - room, span[1] + room]}
        if span[1] - span[0] < _FEW:
            # Else every second mark would be half an update, and read as the one beside it.
            time |= {"tick0": 0, "dtick": 1}
    return {
        "uirevision": UI_REVISION,
        "autosize": True,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": _SANS, "size": 12, "color": palette.ink},
        "margin": {"l": max(46 if look.compact and left == 52 else left, _room(y)), "r": 20, "t": 8, "b": 28},
        "showlegend": False,
        "hovermode": "x unified",
        "hoverlabel": {
            "bgcolor": palette.panel,
            "bordercolor": palette.grid,
            "font": {"color": palette.ink, "size": 12, "family": _SANS},
            "align": "left",
        },
        "dragmode": False if look.compact else "zoom",
        "xaxis": time | (x or {}),
        "yaxis": y,
    }


def _room(y: Json) -> int:
    """Pixels for the labels of a vertical axis that has its own."""
    labels = y.get("ticktext")
    plainest = [re.sub("<.*?>", "", str(label)) for label in labels] if isinstance(labels, list) else []
    return max((8 + 7 * len(label) for label in plainest), default=0) if y.get("type") != "category" else 0


def grain(bucket: int, what: str = "last value, the band spans min to max", *, one: str = "update") -> str:
    """What one point stands for: ``what`` of ``bucket`` updates, or ``one`` alone."""
    return f"1 point = 1 {one}" if bucket == 1 else f"1 point = {bucket:,} updates: {what}"


def numbers(values: Iterable[float] | NDArray[np.float64], digits: int = 6) -> list[float | None]:
    """Values for JSON: six significant digits are more than a pixel shows; NaN and infinity are gaps."""
    given = np.asarray(values if isinstance(values, np.ndarray) else list(values), np.float64)
    finite = np.isfinite(given)
    found = _rounded(np.where(finite, given, 0.0), digits).tolist()
    return list(found) if finite.all() else [v if known else None for v, known in zip(found, finite, strict=True)]


def _rounded(values: NDArray[np.float64], digits: int) -> NDArray[np.float64]:
    """To so many significant digits, as the nearest floats to these decimals; as they are beyond 1e-17 and 1e22."""
    with np.errstate(divide="ignore"):
        size = np.floor(np.log10(np.abs(values)))
    places = np.where(np.isfinite(size), digits - 1 - size, 0).astype(np.int64)
    # Powers of ten up to 22 are exact as floats, so that one product or quotient rounds once.
    last = len(_POWERS) - 1
    up, down = _POWERS[np.clip(places, 0, last)], _POWERS[np.clip(-places, 0, last)]
    found = np.where(places > 0, np.rint(values * up) / up, np.rint(values / down) * down)
    return np.asarray(np.where(np.abs(places) > last, values, found))


def amount(value: object) -> str:
    """A number in a sentence: "0.25", "1,000", "2^18" for a large power of two; anything else as it stands."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        return str(value)[:_LONGEST_AMOUNT]
    mantissa, exponent = math.frexp(value)
    if mantissa == 0.5 and exponent > _LARGEST_SPELLED:
        return f"2^{exponent - 1}"
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < _LARGEST_COUNT else f"{value:.3g}"


def bounds(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float] | None:
    """Smallest and largest finite value, None where there is none."""
    array = np.asarray(values, np.float64)
    finite = array[np.isfinite(array)]
    return (float(finite.min()), float(finite.max())) if finite.size else None


def log2(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """log2 where it is a number, else NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log2(values)
    return np.where(np.isfinite(found), found, np.nan)


def log10(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """log10 where it is a number, else NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log10(values)
    return np.where(np.isfinite(found), found, np.nan)
