"""Every detector, and the one fold that feeds them: the judge, a finished run and an import all use it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from scalescope_server.findings import (
    calibration,
    collapse,
    drift,
    periodic,
    probing,
    recreated,
    resumed,
    runaway,
    thrash,
    unapplied,
    useless,
    zero,
)
from scalescope_server.findings.course import Course, follow
from scalescope_server.findings.episodes import meets
from scalescope_server.findings.history import SKIP_SHARE, History, advance, updates_of_segment
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.store.judging import BEFORE_ALL, Position, Setting, StepRow
from scalescope_server.store.records import FindingRow

# Raise it when a state means something else: runs are then judged anew from their first update.
VERSION = 4
UNKNOWN = Setting()


class Case(Struct, frozen=True):
    """All that is remembered of a run between two passes: where it stands, and what led there.

    ``updates``: how many went into it, ``last``: the last of them. ``ended``: its trainer has said so.
    """

    version: int = VERSION
    updates: int = 0
    last: StepRow | None = None
    ended: bool = False
    history: History = History()
    episodes: tuple[thrash.Episode, ...] = ()
    course: Course = Course()

    @property
    def position(self) -> Position:
        """Where it stands: at the last update, or before all."""
        return BEFORE_ALL if self.last is None else Position(self.last.segment, self.last.step)


def fold(case: Case, steps: Iterable[StepRow], rules: ScalerRules) -> Case:
    """``case`` after ``steps``, which follow it in order."""
    updates, last, history, episodes, course = case.updates, case.last, case.history, case.episodes, case.course
    for step in steps:
        history = advance(history, step, rules)
        episodes = thrash.advance(episodes, history, rules, skipped=step.skipped)
        course = follow(course, step, last, rules, settled=history.settled)
        updates, last = updates + 1, step
    return Case(updates=updates, last=last, ended=case.ended, history=history, episodes=episodes, course=course)


def conclude(case: Case, setting: Setting) -> Case:
    """``case`` with what only the end of its training tells."""
    return case if case.ended == setting.ended else msgspec.structs.replace(case, ended=setting.ended)


def findings(case: Case, rules: ScalerRules, setting: Setting = UNKNOWN) -> tuple[FindingRow, ...]:
    """What ``case`` amounts to. Where one cause explains another's signs, only the cause is told."""
    seen, course = case.position.step, case.course
    remade = recreated.find(course.remade)
    collapses = collapse.find(course.collapse.collapses, seen)
    drifts, rhythms = drift.find(course.drift.drifts, seen), periodic.find(course.periodic.rhythms)
    thrashing = _unexplained(_thrashing(case, rules, [*collapses, *drifts]), rhythms)
    falls = [*collapses, *zero.find(course.zeros, seen)]
    barren = _unexplained(unapplied.find(course.barren, ended=case.ended), [*falls, *remade])
    runaways, useless_ones = _idle(case, rules, setting)
    # Probing is only healthy while nothing is the matter.
    healthy = [] if thrashing or drifts or falls else probing.find(case.history, rules)
    return (
        *falls,
        *remade,
        *resumed.find(course.resumed.mismatches, seen),
        *rhythms,
        *drifts,
        *thrashing,
        *barren,
        *runaways,
        *useless_ones,
        *_unexplained(calibration.find(case.history, rules), [*barren, *remade]),
        *healthy,
    )


def stand(case: Case, rules: ScalerRules) -> tuple[object, ...]:
    """What decides which findings there are, and are open, in one setting: as long as it is equal, they are the same.

    To compare it costs a twentieth of telling them, and from one update to the next it mostly is.
    """
    history = case.history
    kept = (case.course, case.episodes, history.calibrations, history.skips, history.first_probe, case.ended)
    seldom = history.skip_share(rules) <= SKIP_SHARE
    return (*kept, seldom, history.segment, updates_of_segment(history) >= useless.KNOWN_AFTER)


def remember(case: Case) -> bytes:
    return msgspec.json.encode(case)


def recall(state: bytes) -> Case | None:
    """The case in ``state``; None when there is none or another version wrote it."""
    try:
        case = msgspec.json.decode(state, type=Case)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    return case if case.version == VERSION else None


def _thrashing(case: Case, rules: ScalerRules, causes: list[FindingRow]) -> list[FindingRow]:
    """Those whose skips follow doublings, and those that no other cause explains."""
    episodes = thrash.current(case.episodes, case.history, rules)
    found = zip(episodes, thrash.find(episodes, rules), strict=True)
    return [finding for episode, finding in found if thrash.by_interval(episode) or not meets(finding, causes)]


def _unexplained(found: list[FindingRow], causes: list[FindingRow]) -> list[FindingRow]:
    return [finding for finding in found if not meets(finding, causes)]


def _idle(case: Case, rules: ScalerRules, setting: Setting) -> tuple[list[FindingRow], list[FindingRow]]:
    """A scale that runs away, and a scaler that has nothing to do.

    In bf16 the second explains the first, and in fp32 the first says more than the second.
    """
    seen, history = case.position.step, case.history
    runaways = runaway.find(case.course.runaway.runaways, setting, seen)
    updates = updates_of_segment(history)
    found = useless.find(setting, rules, updates=updates, first_step=history.segment_from, seen=seen)
    if found and useless.wide_format(setting) == "bf16":
        return [], found
    return runaways, _unexplained(found, runaways)
