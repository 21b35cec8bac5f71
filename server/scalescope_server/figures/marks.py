"""Each doubling, halving and skip as one mark on the scale's chart, a skip with the parameter that caused it and
the module that was the first to turn non-finite. Where no skip followed, that is a mark of its own.

Where there are more of them than a reader could tell apart, a mark stands for a point of the series and says
how many it holds; none is ever left out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scalescope_server.figures.chart import log2, log2_label, plain
from scalescope_server.figures.origins import first_of_each, origin_text
from scalescope_server.store.records import EventRow, Series

# More marks than this are folded by bucket: they would overlap even on a wide screen.
MAX_MARKS = 600

SYMBOLS = {
    "skip": "triangle-down",
    "backoff": "triangle-down-open",
    "growth": "triangle-up",
    "scale_set": "diamond",
    "nonfinite": "x",
}
# Those whose mark stands at a scale that they tell themselves.
_TOLD = ("skip", "backoff", "growth", "scale_set")
_ROOM = 120
_WORDS = {"backoff": "halved", "growth": "doubled", "scale_set": "set by the user"}


@dataclass(frozen=True, slots=True)
class Mark:
    """One mark: where it stands (``y`` is log2 of a scale), how it looks, and what it says."""

    step: int
    y: float
    kind: str
    text: str


def marks(events: Sequence[EventRow], series: Mapping[str, Series], bucket: int) -> list[Mark]:
    """The marks of a range: one for each of ``events``, or one a point where there are more than ``MAX_MARKS``."""
    origins = first_of_each([event for event in events if event.kind == "nonfinite"])
    if len(events) > MAX_MARKS:
        skips = _folded_skips(series, bucket)
        return [*_folded_growths(series, bucket), *skips, *_origins(origins, {mark.step for mark in skips}, series)]
    skipped = {event.step for event in events if event.kind == "skip"}
    # A skip tells its own halving.
    told = [event for event in events if event.kind != "backoff" or event.step not in skipped]
    found = [mark for event in told if (mark := _mark(event, origins.get(event.step))) is not None]
    return found + _origins(origins, skipped, series)


def power(scale: float) -> str:
    """A scale as people say it, as plain text: "2^16", or its digits where it is no power of two."""
    exponent = math.log2(scale) if scale > 0 and math.isfinite(scale) else math.nan
    return f"2^{exponent:.0f}" if exponent.is_integer() else f"{scale:,.6g}"


def _raised(scale: float) -> str:
    """The same in Plotly's markup."""
    base, caret, exponent = power(scale).partition("^")
    return f"{base}<sup>{exponent}</sup>" if caret else base


def _origins(origins: Mapping[int, EventRow], skipped: Collection[int], series: Mapping[str, Series]) -> list[Mark]:
    """The first non-finite values of points that no skip's mark stands for, at the scale in force then."""
    scale = series["scale"]
    found: dict[int, EventRow] = {}
    for step, event in origins.items():
        row = int(np.searchsorted(scale.step, step, side="right")) - 1
        if row >= 0 and step not in skipped and int(scale.step[row]) not in skipped:
            found.setdefault(row, event)
    level = log2(scale.last)
    return [
        Mark(event.step, float(level[row]), "nonfinite", f"first non-finite: {_origin(event)}")
        for row, event in found.items()
        if math.isfinite(level[row])
    ]


def _origin(event: EventRow) -> str:
    return plain(origin_text(event), _ROOM)


def _folded_skips(series: Mapping[str, Series], bucket: int) -> list[Mark]:
    skipped, scale = series.get("skipped"), series["scale"]
    if skipped is None:
        return []
    rows = np.flatnonzero(skipped.sum > 0)
    at = np.clip(np.searchsorted(scale.step, skipped.step[rows]), 0, len(scale.step) - 1)
    return [
        Mark(step, y, "skip", f"{int(count):,} skipped in updates {step:,} to {step + bucket - 1:,}")
        for step, y, count in zip(
            skipped.step[rows].tolist(), log2(scale.max)[at].tolist(), skipped.sum[rows].tolist(), strict=True
        )
        if math.isfinite(y)
    ]


def _folded_growths(series: Mapping[str, Series], bucket: int) -> list[Mark]:
    """A mark for each point in which the scale rose above where the point before had left it."""
    scale = series["scale"]
    level = log2(scale.max)
    rose = np.flatnonzero(level[1:] > log2(scale.last)[:-1]) + 1
    return [
        Mark(step, y, "growth", f"doubled in updates {step:,} to {step + bucket - 1:,}, up to {log2_label(y)}")
        for step, y in zip(scale.step[rose].tolist(), level[rose].tolist(), strict=True)
    ]


def _mark(event: EventRow, origin: EventRow | None) -> Mark | None:
    scale, after = event.data.get("scale"), event.data.get("next_scale")
    if event.kind not in _TOLD or not isinstance(scale, int | float) or scale <= 0:
        return None
    target = float(after) if isinstance(after, int | float) and after > 0 else float(scale)
    # A halving is drawn where the scale was too high, anything else where the scale arrived.
    y = math.log2(scale if event.kind in ("skip", "backoff") else target)
    first = f"<br>it began in {_origin(origin)}" if event.kind == "skip" and origin is not None else ""
    return Mark(event.step, y, event.kind, _sentence(event, float(scale), target) + first)


def _sentence(event: EventRow, scale: float, target: float) -> str:
    change = f"{_raised(scale)} → {_raised(target)}" if target != scale else _raised(scale)
    if event.kind != "skip":
        return f"{_WORDS[event.kind]} {change}"
    culprit = event.data.get("parameter")
    reason = event.data.get("reason")
    who = plain(str(culprit), 60) if culprit else f"culprit not known{f' ({plain(str(reason), 60)})' if reason else ''}"
    return f"skipped, {change}<br>first non-finite: {who}"
