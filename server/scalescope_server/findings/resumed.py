"""RESUME_SCALE_MISMATCH: a resumed training begins at a scale that the one before was never at."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from scalescope_server.findings.recreated import left_by
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.findings.words import scale_text, times
from scalescope_server.store.judging import StepRow
from scalescope_server.store.records import FindingRow

# Scales of a segment that are remembered, the latest: more octaves than a healthy scaler walks through.
KEPT_SCALES = 64
KEPT_MISMATCHES = 20


class Mismatch(Struct, frozen=True):
    """A segment that began at ``found`` where the one before had ended with ``left``.

    ``skips``: the updates that were skipped before the first that was applied; ``settling`` until then.
    """

    segment: int
    first_step: int
    left: float
    tracker: int | None
    found: float
    found_tracker: int | None
    skips: int = 0
    settling: bool = True


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
    mismatches = _settling(state.mismatches, step)
    applied = state.applied or not step.skipped
    if step.scale in state.scales or (step.skipped and not settled):
        if mismatches is state.mismatches and applied == state.applied:
            return state
        return State(state.scales, applied, mismatches)
    return State((*state.scales, step.scale)[-KEPT_SCALES:], applied, mismatches)


def find(mismatches: tuple[Mismatch, ...]) -> list[FindingRow]:
    return [_finding(mismatch) for mismatch in mismatches]


def _compared(state: State, step: StepRow, scale: float, before: StepRow, rules: ScalerRules) -> tuple[Mismatch, ...]:
    """With one more where a segment begins at a scale that no checkpoint of the last can hold."""
    # Where nothing was ever applied, there was nothing to go on with.
    if before.scale is None or not state.applied:
        return state.mismatches
    left = left_by(before, rules)
    if scale in (left, before.scale) or scale in state.scales:
        return state.mismatches
    found = Mismatch(step.segment, step.step, left, before.growth_tracker, scale, step.growth_tracker)
    return (*state.mismatches, found)[-KEPT_MISMATCHES:]


def _settling(mismatches: tuple[Mismatch, ...], step: StepRow) -> tuple[Mismatch, ...]:
    last = mismatches[-1] if mismatches else None
    if last is None or not last.settling or last.segment != step.segment:
        return mismatches
    followed = msgspec.structs.replace(last, skips=last.skips + step.skipped, settling=step.skipped)
    return (*mismatches[:-1], followed)


def _finding(mismatch: Mismatch) -> FindingRow:
    cost = f" {times(mismatch.skips, 'update')} went by before one was applied." if mismatch.skips else ""
    last_step = mismatch.first_step + mismatch.skips
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
        last_step=None if mismatch.settling else last_step,
        seen_step=last_step,
    )
