"""The headline numbers of a run: how far the scale is from both walls, and how fast the training is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from scalescope_server.figures.reads import RECENT, Wanted, last_walls, limited, recent_skips
from scalescope_server.figures.walls import octaves
from scalescope_server.store.records import EventRow, RunDetail, RunId

if TYPE_CHECKING:
    from scalescope_server.store.reader import Reader


_RECENTLY = ("step_ms", "tokens", "scheduler_steps")


class Headroom(Struct, frozen=True):
    """How far the scale may move, in octaves (negative: it is too far already).

    ``by`` is the parameter that bounds it, None where it is not known; ``less``: the room is less than ``octaves``.
    """

    octaves: float
    by: str | None
    less: bool = False


class Tiles(Struct, frozen=True, kw_only=True):
    """Headline numbers of the last updates; None where nothing says. ``tokens`` is the sum over the whole run.

    ``scheduler_steps``: how often the scheduler has stepped.
    """

    overflow: Headroom | None = None
    flush: Headroom | None = None
    step_ms: float | None = None
    tokens_per_s: float | None = None
    tokens: float | None = None
    scheduler_steps: int | None = None


def tiles(reader: Reader, run: RunId, wanted: Wanted, detail: RunDetail) -> Tiles:
    last = detail.summary.last_step
    if last is None:
        return Tiles()
    _, recent = reader.series(run, _RECENTLY, start=max(last + 1 - RECENT, 0), points=RECENT)
    _, whole = reader.series(run, ["tokens"], points=16)
    milliseconds, updates = float(recent["step_ms"].sum.sum()), int(recent["step_ms"].n.sum())
    tokens = float(recent["tokens"].sum.sum())
    overflow, flush = _headroom(reader, run, wanted, detail)
    return Tiles(
        overflow=overflow,
        flush=flush,
        step_ms=milliseconds / updates if updates else None,
        tokens_per_s=tokens / milliseconds * 1e3 if milliseconds and tokens else None,
        tokens=float(whole["tokens"].sum.sum()) if len(whole["tokens"].step) else None,
        scheduler_steps=int(steps[-1]) if len(steps := recent["scheduler_steps"].max) else None,
    )


def _headroom(reader: Reader, run: RunId, wanted: Wanted, detail: RunDetail) -> tuple[Headroom | None, Headroom | None]:
    """(to overflow, to flush) from the scale in force, by the newest periodic sample and the last skips."""
    level = octaves(detail.summary.scale)
    if level is None:
        return None, None
    found = [_below(event, level) for event in recent_skips(reader, run, detail)]
    last = last_walls(reader, run, wanted, detail)
    names, flush = [parameter.name for parameter in limited(detail)], None
    if last is not None and last.overflow is not None and last.overflow_row is not None:
        found.append(Headroom(round(last.overflow - level, 3), names[last.overflow_row], last.reached))
    if last is not None and last.flush is not None and last.flush_row is not None:
        flush = Headroom(round(level - last.flush, 3), names[last.flush_row])
    # The newest skip of several at one scale, since it is listed last.
    bounds = [headroom for headroom in reversed(found) if headroom is not None]
    return min(bounds, key=lambda headroom: headroom.octaves, default=None), flush


def _below(skip: EventRow, level: float) -> Headroom | None:
    """A skip puts the wall below the scale that was skipped: output gradients may overflow unmeasured."""
    scale, culprit = skip.data.get("scale"), skip.data.get("parameter")
    wall = octaves(float(scale)) if isinstance(scale, int | float) else None
    if wall is None:
        return None
    return Headroom(round(wall - level, 3), culprit if isinstance(culprit, str) else None, less=True)
