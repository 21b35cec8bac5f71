"""The headline numbers of a run: how far the scale is from both walls, and how fast the training is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from scalescope_server.figures.reads import last_walls, limited
from scalescope_server.figures.walls import octaves
from scalescope_server.store.records import RunDetail, RunId

if TYPE_CHECKING:
    from scalescope_server.store.reader import Reader

# Tiles speak of the last moments, not of the whole run.
RECENT = 50


class Headroom(Struct, frozen=True):
    """How far the scale may move, in octaves (negative: it is too far already), and the parameter that bounds it."""

    octaves: float
    by: str


class Tiles(Struct, frozen=True, kw_only=True):
    """Headline numbers of the last updates; None where nothing says. ``tokens`` is the sum over the whole run."""

    overflow: Headroom | None = None
    flush: Headroom | None = None
    step_ms: float | None = None
    tokens_per_s: float | None = None
    tokens: float | None = None


def tiles(reader: Reader, run: RunId, detail: RunDetail) -> Tiles:
    attempted = detail.summary.attempted
    if not attempted:
        return Tiles()
    _, recent = reader.series(run, ["step_ms", "tokens"], start=max(attempted - RECENT, 0), points=RECENT)
    _, whole = reader.series(run, ["tokens"], points=16)
    milliseconds, updates = float(recent["step_ms"].sum.sum()), int(recent["step_ms"].n.sum())
    tokens = float(recent["tokens"].sum.sum())
    overflow, flush = _headroom(reader, run, detail)
    return Tiles(
        overflow=overflow,
        flush=flush,
        step_ms=milliseconds / updates if updates else None,
        tokens_per_s=tokens / milliseconds * 1e3 if milliseconds and tokens else None,
        tokens=float(whole["tokens"].sum.sum()) if len(whole["tokens"].step) else None,
    )


def _headroom(reader: Reader, run: RunId, detail: RunDetail) -> tuple[Headroom | None, Headroom | None]:
    """(to overflow, to flush) from the scale in force, by the newest periodic sample."""
    level, last = octaves(detail.summary.scale), last_walls(reader, run, detail)
    if level is None or last is None:
        return None, None
    names = [parameter.name for parameter in limited(detail)]
    overflow = flush = None
    if last.overflow is not None and last.overflow_row is not None:
        overflow = Headroom(round(last.overflow - level, 3), names[last.overflow_row])
    if last.flush is not None and last.flush_row is not None:
        flush = Headroom(round(level - last.flush, 3), names[last.flush_row])
    return overflow, flush
