"""The findings' part of a pass: the updates of a run past the judge's position, folded into what they amount to.

Updates that come late and belong before its position (a segment whose spooled data was delivered after the next had
begun) make it judge the run anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from scalescope_server.findings.catalogue import Case, conclude, findings, fold, recall, remember
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.store.engine import Store
from scalescope_server.store.judging import BEFORE_ALL, Judged, Position
from scalescope_server.store.records import FindingRow, RunId
from scalescope_server.watching.clock import Shift
from scalescope_server.watching.openings import (
    FROM_THE_FIRST,
    Opening,
    Past,
    fold_openings,
    followed,
    openings_at,
    past_openings,
)
from scalescope_server.watching.stretches import Open

# Rows of one pass: small enough that a run of millions, judged anew, lets the others have their turn.
PASS_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Weighed:
    """What a pass came to. ``is_news``: it differs from what is stored. ``is_all``: no more rows may be waiting.

    ``position``: the last update that is judged; ``opened``: which findings were open at which of them. ``judged``
    makes what is to be stored out of how the trainer's clock was set otherwise.
    """

    judged: Callable[[Sequence[Shift]], Judged]
    position: Position
    is_news: bool
    is_all: bool
    opened: Open | None


class Weighing:
    """One pass over ``run``, from where the findings stand."""

    def __init__(self, store: Store, run: RunId) -> None:
        self._store = store
        self._run = run
        self.updates, state = store.reader.judgement(run)
        self._known = recall(state)
        self._past = Past() if self._known is None else msgspec.json.decode(state, type=Past)

    @property
    def shifts(self) -> Sequence[Shift]:
        """How the trainer's clock was set otherwise at updates that are judged."""
        return self._past.shifts

    def start(self) -> Position:
        """Where rules begin that have never been evaluated on the run: they say nothing of what is judged already."""
        if self._known is not None:
            return self._known.position
        return self._store.reader.newest_update(self._run) if self.updates else BEFORE_ALL

    def past(self) -> Open:
        """Which findings were open at updates that are judged: as it was found then, as far as that is remembered."""
        return openings_at(self._past.opened, past_openings(self._store.reader.findings(self._run)))

    def weigh(self, fence: int | None, *, openings: bool) -> Weighed:
        """``openings``: whether it is asked which findings are open at each update."""
        reader, run = self._store.reader, self._run
        case = judged = self._known or Case()
        known = self._past.opened if self._known else FROM_THE_FIRST
        steps, stored = reader.steps_after(run, case.position, PASS_ROWS)
        if len(steps) < PASS_ROWS and stored != case.updates + len(steps):
            if reader.is_whole(run):
                case, known = Case(), FROM_THE_FIRST
                steps, stored = reader.steps_after(run, case.position, PASS_ROWS)
            else:
                # What is pruned cannot be judged anew: what was found of it stays, and what came late is counted.
                case = msgspec.structs.replace(case, updates=stored - len(steps))
        rules, setting = ScalerRules.of(reader.scaler(run)), reader.setting(run)
        changes: Sequence[Opening] = ()
        if openings:
            case, changes = fold_openings(case, steps, rules, setting)
        case = conclude(fold(case, () if openings else steps, rules), setting)
        # Who does not look does not know any more.
        opened = followed(known, changes) if openings else ()
        found: tuple[FindingRow, ...] = findings(case, rules, setting)
        return Weighed(
            lambda shifts: Judged(run, case.updates, _with_past(case, Past(opened, tuple(shifts))), found, fence),
            case.position,
            is_news=bool(steps) or case != judged,
            is_all=len(steps) < PASS_ROWS,
            opened=openings_at(opened, self.past()) if openings else None,
        )


class _Remembered(Case, frozen=True):
    opened: tuple[Opening, ...] = ()
    shifts: tuple[Shift, ...] = ()


def _with_past(case: Case, past: Past) -> bytes:
    return remember(_Remembered(**msgspec.structs.asdict(case), opened=past.opened, shifts=past.shifts))
