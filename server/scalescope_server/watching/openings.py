"""Which findings are open at which update, as rules ask for them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from scalescope_server.findings.catalogue import Case, conclude, findings, fold, recall, stand
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.store.judging import BEFORE_ALL, Position, Setting, StepRow
from scalescope_server.store.records import FindingRow
from scalescope_server.store.ticks import Updates
from scalescope_server.watching.clock import Shift
from scalescope_server.watching.stretches import Open, Openings

Codes = frozenset[str]
# From an update on these findings were open.
Opening = tuple[Position, Codes]
# How many of them are remembered of a run: hardly ever does one open or close.
MOST_OPENINGS = 512
# Before the first update none is open.
FROM_THE_FIRST: tuple[Opening, ...] = ((BEFORE_ALL, frozenset()),)


class Past(Struct, frozen=True):
    """What is remembered beside the case: from which update on which findings were open, and how the clock was set."""

    opened: tuple[Opening, ...] = ()
    shifts: tuple[Shift, ...] = ()


def open_codes(found: Iterable[FindingRow]) -> Codes:
    """The codes of those that are open."""
    return frozenset(finding.code for finding in found if finding.last_step is None)


def fold_openings(
    case: Case, steps: Iterable[StepRow], rules: ScalerRules, setting: Setting
) -> tuple[Case, list[Opening]]:
    """``case`` after ``steps``, and from which of them on which findings were open, the first of them in any case."""
    changes: list[Opening] = []
    known: tuple[object, ...] = ()
    # A training of which an update came had not ended, whatever is told of it by now.
    setting = msgspec.structs.replace(setting, ended=False)
    for step in steps:
        case = conclude(fold(case, (step,), rules), setting)
        stands = stand(case, rules)
        if stands == known:
            continue
        known, codes = stands, open_codes(findings(case, rules, setting))
        if not changes or changes[-1][1] != codes:
            changes.append((case.position, codes))
    return case, changes


def remembered(state: bytes) -> tuple[Case, tuple[Opening, ...]]:
    """The case as it was stored, and what was open from the first update on; where not all of that is remembered, as
    before the first update.
    """
    case = recall(state)
    if case is not None:
        opened = msgspec.json.decode(state, type=Past).opened
        if opened[:1] == FROM_THE_FIRST:
            return case, opened
    return Case(), FROM_THE_FIRST


def followed(known: Sequence[Opening], changes: Sequence[Opening]) -> tuple[Opening, ...]:
    """``known`` and what followed, as far as it is remembered."""
    again = bool(known and changes) and known[-1][1] == changes[0][1]
    return (*known, *changes[again:])[-MOST_OPENINGS:]


def openings_at(changes: Sequence[Opening], otherwise: Open = lambda _: ()) -> Open:
    """What ``changes`` say of updates: each holds till the next; of those before the first, what ``otherwise`` says."""
    positions = [position for position, _ in changes]

    def of(updates: Updates) -> Openings:
        first, last = (Position(updates.segment, int(updates.step[at])) for at in (0, -1))
        before = bisect_right(positions, first)
        later = [
            (int(updates.step.searchsorted(position.step)), codes)
            for position, codes in changes[before : bisect_right(positions, last)]
        ]
        if before:
            return ((0, changes[before - 1][1]), *later)
        known_from = later[0][0] if later else len(updates)
        return (*(told for told in otherwise(updates) if told[0] < known_from), *later)

    return of


def past_openings(found: Sequence[FindingRow]) -> Open:
    """Of updates that were judged before, as far as stored findings tell: from their first steps to their last."""

    def of(updates: Updates) -> Openings:
        first, last = int(updates.step[0]), int(updates.step[-1])
        edges = {first}
        for finding in found:
            edges |= {finding.first_step, (last if finding.last_step is None else finding.last_step) + 1}
        return tuple(
            (int(updates.step.searchsorted(step)), _open_at(found, step))
            for step in sorted(edges)
            if first <= step <= last
        )

    return of


def _open_at(found: Sequence[FindingRow], step: int) -> Codes:
    return frozenset(
        finding.code
        for finding in found
        if finding.first_step <= step and (finding.last_step is None or step <= finding.last_step)
    )
