"""SCALE_ZERO: the scale is 0, which no scaler leaves again.

The scaled loss is 0 then, the gradients are 0, the inverse scale is infinite, and 0 times that is NaN: every update is
skipped from there on, even where the first fault is long gone.
"""

from __future__ import annotations

from scalescope_server.findings.episodes import Stretch, closed, held, open_one
from scalescope_server.findings.streak import Streak
from scalescope_server.findings.words import times
from scalescope_server.store.judging import StepRow
from scalescope_server.store.records import FindingRow


class Zero(Stretch, frozen=True):
    """A stretch at 0. ``applied``: the last update before it that was applied; ``skipping_since``: the first of those
    that were skipped in a row when it began.
    """

    applied: int | None
    skipping_since: int


def advance(zeros: tuple[Zero, ...], step: StepRow, streak: Streak | None) -> tuple[Zero, ...]:
    """``zeros`` after ``step``, which ends ``streak``."""
    if step.scale is None or (step.scale == 0) == (open_one(zeros) is not None):
        return zeros
    if step.scale > 0:
        return closed(zeros, step.step - 1)
    applied = step.step - 1 if streak is None and step.step else None if streak is None else streak.applied
    skipping_since = step.step if streak is None else streak.first_step
    return held(zeros, Zero(applied, skipping_since, first_step=step.step))


def find(zeros: tuple[Zero, ...], seen: int) -> list[FindingRow]:
    return [_finding(zero, seen) for zero in zeros]


def _finding(zero: Zero, seen: int) -> FindingRow:
    end = seen if zero.last_step is None else zero.last_step
    lost = end - zero.skipping_since + 1
    return FindingRow(
        code="SCALE_ZERO",
        subject="scale",
        severity="fatal",
        sentence=(
            f"The scale is 0 since update {zero.first_step:,} and stays 0: every update is skipped from there on. "
            f"{times(lost, 'update')} in a row {'was' if lost == 1 else 'were'} lost, from {zero.skipping_since:,} on."
        ),
        evidence={"updates_lost": lost, "last_applied": zero.applied},
        advice=_advice(zero),
        first_step=zero.first_step,
        last_step=zero.last_step,
        seen_step=end,
    )


def _advice(zero: Zero) -> str:
    again = "with a scaler whose scale is above 0, and look for what was not finite before anything else"
    if zero.applied is None:
        return f"Stop it: no update was ever applied. Start again {again}."
    return f"Stop it: the run cannot recover. Go on from a checkpoint of update {zero.applied:,} or before, {again}."
