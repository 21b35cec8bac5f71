"""When a run was there: what its trainer told of itself beside updates, start by start."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from msgspec import Struct

from scalescope_server.rules.ticks import RunState


class Start(Struct, frozen=True):
    """One start of a trainer. Times are by the clock of its updates, in seconds.

    ``began_at``: None where what was before it is not asked. ``heard_at``: its last sign of life. ``ending``,
    ``ended_at``: what it said of its end, if it did.
    """

    segment: int
    began_at: float | None
    heard_at: float
    ending: Literal["finished", "crashed"] | None = None
    ended_at: float = 0.0

    def shifted(self, before_s: float, within_s: float) -> Start:
        """The same by a clock that is so many seconds ahead as it began, and as it ended."""
        began_at = None if self.began_at is None else self.began_at + before_s
        return Start(self.segment, began_at, self.heard_at + within_s, self.ending, self.ended_at + within_s)


class Phase(NamedTuple):
    """From ``at`` on a run is in this ``state``. ``counts``: whether it is late with an update since the last one;
    not from a new start on, before its first.
    """

    at: float
    state: RunState
    counts: bool


def phases(
    starts: Sequence[Start], silent_after_s: float, last: tuple[int, float] | None, following: int | None
) -> list[Phase]:
    """What became of a run after its update ``last`` (of which start, and when) until the next one.

    ``following``: the start that told that one; None, where none came. After ``silent_after_s`` without a sign of life
    it is silent. While one start goes on, it is taken to have lived: of its past only the last sign is kept.
    """
    found = [] if last is None else [Phase(last[1], "running", counts=True)]
    before = -1 if last is None else last[0]
    for start in starts:
        if start.segment > before and start.began_at is not None:
            found.append(Phase(start.began_at, "running", counts=False))
        if following is not None and start.segment >= following:
            break
        if start.segment >= before:
            found.append(_end(start, silent_after_s, counts=start.segment == before))
    return _in_order(found)


def _end(start: Start, silent_after_s: float, *, counts: bool) -> Phase:
    if start.ending is not None:
        return Phase(start.ended_at, start.ending, counts)
    return Phase(start.heard_at + silent_after_s, "silent", counts)


def _in_order(found: Sequence[Phase]) -> list[Phase]:
    """Without silences that began after somebody had come back; no time goes backwards."""
    kept: list[Phase] = []
    for phase, following in pairwise([*found, None]):
        assert phase is not None
        if phase.state == "silent" and following is not None and following.at <= phase.at:
            continue
        kept.append(phase._replace(at=max(phase.at, kept[-1].at)) if kept else phase)
    return kept
