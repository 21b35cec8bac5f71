"""Every detector, and the one fold that feeds them: the judge, a finished run and an import all use it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from scalescope_server.findings import calibration, probing, thrash
from scalescope_server.findings.history import History, ScalerRules, advance
from scalescope_server.store.judging import BEFORE_ALL, Position, StepRow
from scalescope_server.store.records import FindingRow

# Raise it when a state means something else: runs are then judged anew from their first update.
VERSION = 2


class Case(Struct, frozen=True):
    """All that is remembered of a run between two passes: where it stands, and what led there.

    ``updates``: how many went into it, ``position``: the last of them.
    """

    version: int = VERSION
    updates: int = 0
    position: Position = BEFORE_ALL
    history: History = History()
    episodes: tuple[thrash.Episode, ...] = ()


def fold(case: Case, steps: Iterable[StepRow], rules: ScalerRules) -> Case:
    """``case`` after ``steps``, which follow it in order."""
    updates, position, history, episodes = case.updates, case.position, case.history, case.episodes
    for step in steps:
        updates, position = updates + 1, Position(step.segment, step.step)
        history = advance(history, step, rules)
        episodes = thrash.advance(episodes, history, rules, skipped=step.skipped)
    return Case(updates=updates, position=position, history=history, episodes=episodes)


def findings(case: Case, rules: ScalerRules) -> tuple[FindingRow, ...]:
    """What ``case`` amounts to, worst first. Probing is only healthy while nothing thrashes."""
    thrashing = thrash.find(case.episodes)
    healthy = [] if thrashing else probing.find(case.history, rules)
    return (*thrashing, *calibration.find(case.history), *healthy)


def remember(case: Case) -> bytes:
    return msgspec.json.encode(case)


def recall(state: bytes) -> Case | None:
    """The case in ``state``; None when there is none or another version wrote it."""
    try:
        case = msgspec.json.decode(state, type=Case)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    return case if case.version == VERSION else None
