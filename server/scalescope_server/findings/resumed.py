"""RESUME_SCALE_MISMATCH: a resumed training begins at a scale that the one before was never at."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from scalescope_server.findings.episodes import Stretch, closed, held, open_one
from scalescope_server.findings.recreated import left_by
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.findings.words import scale_text, times
from scalescope_server.store.judging import StepRow
from scalescope_server.store.records import FindingRow

# Scales of a segment that are remembered, the latest: more octaves than a healthy scaler walks through.
KEPT_SCALES = 64


class Mismatch(Stretch, frozen=True):
    """A segment that began at ``found`` where the one before had ended with ``left``, until its scale has settled.

    ``skips``: the updates that were skipped in it until then.
    """

    left: float
    tracker: int | None
    found: float
    found_tracker: int | None
    skips: int = 0


class State(Struct, frozen=True):
    """``scales``: those of the current segment at which an update was applied, or skipped once it had settled.

    A checkpoint of it holds one of them, or the one that its last update left.
    """

    scales: tuple[float, ...] = ()
    applied: bool = False
    mismatches: tuple[Mismatch, ...] = ()


def advance(state: State, step: StepRow, before: StepRow | None, rules: ScalerRules, *, settled: bool) -> State:
    """``state`` after ``step``, which follows ``before``. ``settled``: whether the scale of its segment has."""
    if step.scale is None:
        return state
    if before is not None and before.segment != step.segment:
        state = State(mismatches=_compared(state, step, step.scale, before, rules))
    mismatches = _settling(state.mismatches, step, settled=settled)
    applied = state.applied or not step.skipped
    if step.scale in state.scales or (step.skipped and not settled):
        if mismatches is state.mismatches and applied == state.applied:
            return state
        return State(state.scales, applied, mismatches)
    return State((*state.scales, step.scale)[-KEPT_SCALES:], applied, mismatches)


def find(mismatches: tuple[Mismatch, ...], seen: int) -> list[FindingRow]:
    return [_finding(mismatch, seen) for mismatch in mismatches]


def _compared(state: State, step: StepRow, scale: float, before: StepRow, rules: ScalerRules) -> tuple[Mismatch, ...]:
    """With one more where a segment begins at a scale that no checkpoint of the last can hold."""
    mismatches = closed(state.mismatches, before.step)
    # Where nothing was ever applied, there was nothing to go on with.
    if before.scale is None or not state.applied:
        return mismatches
    left = left_by(before, rules)
    if scale in (left, before.scale) or scale in state.scales:
        return mismatches
    return held(mismatches, Mismatch(left, before.growth_tracker, scale, step.growth_tracker, first_step=step.step))


def _settling(mismatches: tuple[Mismatch, ...], step: StepRow, *, settled: bool) -> tuple[Mismatch, ...]:
    now = open_one(mismatches)
    if now is None:
        return mismatches
    if settled:
        return closed(mismatches, step.step)
    return held(mismatches, msgspec.structs.replace(now, skips=now.skips + 1)) if step.skipped else mismatches


def _finding(mismatch: Mismatch, seen: int) -> FindingRow:
    cost = f" {times(mismatch.skips, 'update')} had to be skipped until it fit." if mismatch.skips else ""
    return FindingRow(
        code="RESUME_SCALE_MISMATCH",
        subject="scale",
        severity="warning",
        sentence=(
            f"The training that was resumed at update {mismatch.first_step:,} begins with a scale of "
            f"{scale_text(mismatch.found)}; the one before ended with {scale_text(mismatch.left)} and was never there."
            f"{cost}"
        ),
        evidence={
            "ended_with": mismatch.left,
            "began_with": mismatch.found,
            "growth_tracker": mismatch.tracker,
            "growth_tracker_after": mismatch.found_tracker,
            "skips": mismatch.skips,
        },
        advice=(
            "Save scaler.state_dict() in the checkpoint, and load it before the first update and after anything that "
            "steps an optimizer."
        ),
        first_step=mismatch.first_step,
        last_step=mismatch.last_step,
        seen_step=seen if mismatch.last_step is None else mismatch.last_step,
    )
