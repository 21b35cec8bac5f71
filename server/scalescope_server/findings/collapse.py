"""SCALE_COLLAPSE: halving after halving carries the scale below what any training needs.

A loss scale lifts gradients into the range of a format. Below 1 it only lowers them, so a scaler that falls there is
not looking for a scale that fits: what is not finite does not come from the scale.
"""

from __future__ import annotations

import math

import msgspec
from msgspec import Struct

from scalescope_server.findings.episodes import Stretch, closed, held, open_one
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.findings.streak import Streak
from scalescope_server.findings.words import scale_text, times
from scalescope_server.store.judging import StepRow
from scalescope_server.store.records import FindingRow, Severity

# A scale has collapsed when it fell so many octaves to get below 1: one that began there was set by somebody.
FALLEN_OCTAVES = 4
# Below 2 to this power every gradient up to 1/2 is zero in fp16, which rounds what is 2^-25 or less to 0.
CRITICAL_EXPONENT = -24
# From 2 to this power down the inverse is infinite in fp32, while the check of the gradients passes.
FATAL_EXPONENT = -128
# So many halvings one after the other, from 65536 to 1, and nothing has changed: it is no matter of the scale.
CHANGED_NOTHING = 16
# The lowest scale above 0: fp32's smallest subnormal.
_SMALLEST = 2.0**-149
# At the floor of 1 where its library holds it, a scale is well again after so many updates without a skip.
CALM_AT_FLOOR = 20


class Fall(Struct, frozen=True):
    """The skips since the last doubling, or since the segment began. ``culprit``: the first parameter one named."""

    from_scale: float
    skips: int
    longest: int
    longest_from: int
    culprit: str | None

    @property
    def longest_to(self) -> int:
        return self.longest_from + self.longest - 1


class Collapse(Stretch, frozen=True):
    """A stretch in which the scale had fallen below 1, and how it fell; ``lowest`` is the lowest in use."""

    fall: Fall
    lowest: float
    skip_step: int


class State(Struct, frozen=True):
    fall: Fall | None = None
    collapses: tuple[Collapse, ...] = ()


def advance(state: State, step: StepRow, before: StepRow | None, streak: Streak | None, rules: ScalerRules) -> State:
    """``state`` after ``step``, which follows ``before`` and ends ``streak``."""
    scale, goes_on = step.scale, before is not None and before.segment == step.segment
    if scale is None:
        return state
    last = before.scale if before is not None and goes_on else None
    if not step.skipped and scale == last and open_one(state.collapses) is None:
        return state
    fall = state.fall if last is not None and scale <= last else None
    if step.skipped and streak is not None:
        fall = _longer(fall, step, scale, streak)
    collapses = state.collapses if goes_on else closed(state.collapses, -1 if before is None else before.step)
    return State(fall, _followed(collapses, step, scale, fall, rules))


def find(collapses: tuple[Collapse, ...], seen: int) -> list[FindingRow]:
    return [_finding(collapse, seen) for collapse in collapses]


def _longer(fall: Fall | None, step: StepRow, scale: float, streak: Streak) -> Fall:
    known = fall or Fall(scale, 0, 0, step.step, None)
    longest, since = max((known.longest, known.longest_from), (streak.skips, streak.first_step))
    return Fall(known.from_scale, known.skips + 1, longest, since, known.culprit or step.culprit)


def _followed(
    collapses: tuple[Collapse, ...], step: StepRow, scale: float, fall: Fall | None, rules: ScalerRules
) -> tuple[Collapse, ...]:
    now = open_one(collapses)
    if now is None:
        if fall is None or not _has_collapsed(step, scale, fall, rules):
            return collapses
        return held(collapses, Collapse(fall, scale, step.step, first_step=step.step))
    if scale > max(1.0, rules.floor / rules.backoff) or (scale >= 1 and step.step - now.skip_step >= CALM_AT_FLOOR):
        return closed(collapses, step.step - 1)
    skip_step = step.step if step.skipped else now.skip_step
    # After a doubling another fall may begin: what is told is the one that led here, until that is the longer one.
    worst = fall if fall is not None and fall.skips > now.fall.skips else now.fall
    lowest = min(scale, now.lowest)
    return held(collapses, msgspec.structs.replace(now, fall=worst, lowest=lowest, skip_step=skip_step))


def _has_collapsed(step: StepRow, scale: float, fall: Fall, rules: ScalerRules) -> bool:
    # A library that does not go lower stays at its floor, or ends the training there, before that update is told.
    at_floor = step.skipped and scale * rules.backoff <= rules.floor
    low = scale < 1 or at_floor
    return low and scale > 0 and math.log2(fall.from_scale / scale) >= FALLEN_OCTAVES


def _finding(collapse: Collapse, seen: int) -> FindingRow:
    fall = collapse.fall
    return FindingRow(
        code="SCALE_COLLAPSE",
        subject="scale",
        severity=_severity(collapse.lowest),
        sentence=(
            f"{times(fall.skips, 'update')} were skipped{_in_a_row(fall)}, and the scale fell from "
            f"{scale_text(fall.from_scale)} to {scale_text(collapse.lowest)}. {_meaning(collapse)}"
        ),
        evidence={
            "skips": fall.skips,
            "longest_from": fall.longest_from,
            "longest_to": fall.longest_to,
            "from_scale": fall.from_scale,
            "lowest": collapse.lowest,
            "parameter": fall.culprit,
        },
        advice=_advice(fall),
        first_step=collapse.first_step,
        last_step=collapse.last_step,
        seen_step=seen if collapse.last_step is None else collapse.last_step,
    )


def _in_a_row(fall: Fall) -> str:
    if fall.longest == 1:
        return ""
    return f", {fall.longest:,} of them in a row ({fall.longest_from:,} to {fall.longest_to:,})"


def _severity(lowest: float) -> Severity:
    if lowest <= 2.0**FATAL_EXPONENT:
        return "fatal"
    return "critical" if lowest < 2.0**CRITICAL_EXPONENT else "warning"


def _meaning(collapse: Collapse) -> str:
    if collapse.lowest <= 2.0**FATAL_EXPONENT:
        low = f"At 2^{FATAL_EXPONENT} and below, an update that is found finite writes NaN into the weights."
    elif collapse.lowest < 2.0**CRITICAL_EXPONENT:
        low = "So low, gradients up to 1/2 are zero in fp16."
    else:
        low = "Below 1 it lowers gradients instead of lifting them."
    halvings = _halvings(collapse)
    if halvings < CHANGED_NOTHING:
        return low
    return f"{low} {halvings} halvings changed nothing: this is no matter of the scale."


def _halvings(collapse: Collapse) -> int:
    """In a row. A scaler may lower its scale by less than half at a skip, or not at all, and 0 cannot be lowered."""
    known, lowest = collapse.fall, collapse.lowest or _SMALLEST
    return min(known.longest, int(math.log2(known.from_scale / lowest)) + 1) if known.from_scale > 0 else 0


def _advice(fall: Fall) -> str:
    first = f" ({fall.culprit} is the first gradient that is not)" if fall.culprit else ""
    before = f"Go on from a checkpoint before update {fall.longest_from:,}"
    again = before if fall.longest_from else "Start again"
    return (
        f"Look for the first value that is not finite{first}, in the inputs, the forward and the loss, or for a loss "
        f"that rose before it. {again}, with a scale of 1 or more."
    )
