"""The regions on both sides of the loss scale: the walls as lines, what lies beyond them veiled.

A wall that is far from the scale leaves the chart, whose edge then says where it is.
"""

from __future__ import annotations

from scalescope_server.figures.chart import Json, log2_label, numbers
from scalescope_server.figures.palette import Palette

# A wall as {update: log2 of a scale}, in order.
Wall = dict[int, float]


def overflow_region(overflow: Wall, high: float, palette: Palette) -> list[Json]:
    if not overflow:
        return []
    x = list(overflow)
    trace = {"type": "scatter", "mode": "lines", "x": x}
    return [
        trace
        | {
            # A wall stands until the next sample tells another: the scale moves in steps, and so does this.
            "name": "overflow wall",
            "y": numbers(overflow.values()),
            "customdata": numbers((2.0**y for y in overflow.values()), 9),
            "line": {"color": palette.overflow, "width": 1.25, "shape": "hv"},
            "hovertemplate": "2<sup>%{y:.1f}</sup><extra>overflows from</extra>",
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


def flush_region(flush: Wall, low: float, palette: Palette) -> list[Json]:
    if not flush:
        return []
    trace = {"type": "scatter", "mode": "lines", "x": list(flush)}
    return [
        trace | {"name": "below the wall", "y": [low] * len(flush), "line": {"width": 0}, "hoverinfo": "skip"},
        trace
        | {
            "name": "flush wall",
            "y": list(flush.values()),
            "customdata": numbers((2.0**y for y in flush.values()), 9),
            "line": {"color": palette.flush, "width": 1.25, "shape": "hv", "dash": "dot"},
            "hovertemplate": "2<sup>%{y:.0f}</sup><extra>0.1 % vanish below</extra>",
            "fill": "tonexty",
            "fillcolor": palette.veil(palette.flush, 0.10),
        },
    ]


def far_walls(overflow: Wall, flush: Wall, window: tuple[int, float, float], palette: Palette) -> list[Json]:
    """Where each wall is at last, if that is outside the chart. ``window``: its first update, lowest and highest y."""
    x, low, high = window
    told = []
    if overflow and (last := list(overflow.values())[-1]) > high:
        told.append(_edge_text(x, high, f"↑ overflow wall at {log2_label(round(last, 1))}", "bottom", palette.overflow))
    if flush and (last := list(flush.values())[-1]) < low:
        told.append(_edge_text(x, low, f"↓ flush wall at {log2_label(round(last, 1))}", "top", palette.flush))
    return told


def _edge_text(x: int, y: float, text: str, side: str, colour: str) -> Json:
    return {
        "type": "scatter",
        "mode": "text",
        "name": text,
        "x": [x],
        "y": [y],
        "text": [text],
        "textposition": f"{side} right",
        "textfont": {"color": colour, "size": 12},
        "hoverinfo": "skip",
    }
