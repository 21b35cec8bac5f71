"""What the detectors of the scale's course keep, beside its history: one state for each, folded update by update."""

from __future__ import annotations

from msgspec import Struct

from scalescope_server.findings import collapse, drift, periodic, recreated, resumed, runaway, streak, unapplied, zero
from scalescope_server.findings.episodes import open_one
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.store.judging import StepRow


class Course(Struct, frozen=True):
    """All of them. Of bounded size, whatever the run's length."""

    streak: streak.Streak | None = None
    zeros: tuple[zero.Zero, ...] = ()
    collapse: collapse.State = collapse.State()
    drift: drift.State = drift.State()
    runaway: runaway.State = runaway.State()
    remade: tuple[recreated.Remade, ...] = ()
    resumed: resumed.State = resumed.State()
    barren: tuple[unapplied.Barren, ...] = ()
    periodic: periodic.State = periodic.State()


def follow(course: Course, step: StepRow, before: StepRow | None, rules: ScalerRules, *, settled: bool) -> Course:
    """``course`` after ``step``, which follows ``before``. ``settled``: whether the scale has.

    Nearly all updates are applied at the scale that the last was applied at: they change nothing here, and are many.
    """
    return course if _is_ordinary(course, step, before) else advance(course, step, before, rules, settled=settled)


def advance(course: Course, step: StepRow, before: StepRow | None, rules: ScalerRules, *, settled: bool) -> Course:
    """The same, asked of every detector."""
    skipping = streak.advance(course.streak, step, before)
    return Course(
        streak=skipping,
        zeros=zero.advance(course.zeros, step, skipping),
        collapse=collapse.advance(course.collapse, step, before, skipping, rules),
        drift=drift.advance(course.drift, step, before, settled=settled),
        runaway=runaway.advance(course.runaway, step, before),
        remade=recreated.advance(course.remade, step, before, rules),
        resumed=resumed.advance(course.resumed, step, before, rules, settled=settled),
        barren=unapplied.advance(course.barren, step, before),
        periodic=periodic.advance(course.periodic, step, before, settled=settled),
    )


def _is_ordinary(course: Course, step: StepRow, before: StepRow | None) -> bool:
    if before is None or step.skipped or before.skipped or step.recreated or step.left_out or before.left_out:
        return False
    alike = step.scale == before.scale and step.segment == before.segment
    # How long it is since the last skip is what these wait for.
    waiting = course.collapse.collapses, course.periodic.rhythms, course.resumed.mismatches
    return alike and not any(map(open_one, waiting))
