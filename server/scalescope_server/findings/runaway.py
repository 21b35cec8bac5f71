"""SCALE_RUNAWAY: the scale doubles for ever and nothing overflows."""

from __future__ import annotations

from msgspec import Struct

from scalescope_server.findings.episodes import Stretch, closed, held, open_one
from scalescope_server.findings.useless import wide_format
from scalescope_server.findings.words import scale_text, times
from scalescope_server.store.judging import Setting, StepRow
from scalescope_server.store.records import FindingRow

# 2 to this power: whatever overflows nothing there is below 2^-44, and every one of its gradients with it.
RUNAWAY_EXPONENT = 60
# So many doublings with no skip between them say that there is no ceiling: one that was set that high may have one.
RUNAWAY_DOUBLINGS = 20


class Runaway(Stretch, frozen=True):
    """A stretch in which the scale was that high; ``highest`` is the highest in use, after so many ``doublings``."""

    highest: float
    doublings: int


class State(Struct, frozen=True):
    """``doublings``: since the last skip, or since the segment began."""

    doublings: int = 0
    runaways: tuple[Runaway, ...] = ()


def advance(state: State, step: StepRow, before: StepRow | None) -> State:
    """``state`` after ``step``, which follows ``before``."""
    scale, last = step.scale, None if before is None else before.scale
    if scale is None:
        return state
    goes_on = before is not None and before.segment == step.segment and last is not None
    if step.skipped or not goes_on or last is None or scale < last:
        return State(0, closed(state.runaways, step.step - 1)) if state.doublings or state.runaways else state
    if scale == last:
        return state
    doublings = state.doublings + 1
    runs_away = scale >= 2.0**RUNAWAY_EXPONENT and doublings >= RUNAWAY_DOUBLINGS
    if not runs_away:
        return State(doublings, state.runaways)
    now = open_one(state.runaways)
    first_step = step.step if now is None else now.first_step
    return State(doublings, held(state.runaways, Runaway(scale, doublings, first_step=first_step)))


def find(runaways: tuple[Runaway, ...], setting: Setting, seen: int) -> list[FindingRow]:
    return [_finding(runaway, setting, seen) for runaway in runaways]


def _finding(runaway: Runaway, setting: Setting, seen: int) -> FindingRow:
    cause, advice = _cause(setting)
    return FindingRow(
        code="SCALE_RUNAWAY",
        subject="scale",
        severity="warning",
        sentence=(
            f"The scale was doubled {times(runaway.doublings, 'time')}, to {scale_text(runaway.highest)}, and nothing "
            f"overflowed. {cause}"
        ),
        evidence={"highest": runaway.highest, "doublings": runaway.doublings, "gradients_zero": setting.zero},
        advice=advice,
        first_step=runaway.first_step,
        last_step=runaway.last_step,
        seen_step=seen if runaway.last_step is None else runaway.last_step,
    )


def _cause(setting: Setting) -> tuple[str, str]:
    if setting.zero:
        return (
            "All gradients of the last sample are zero.",
            "Look for what cuts the loss off from the parameters: a detach(), a no_grad(), a mask or a factor of zero.",
        )
    if wide_format(setting) == "fp32":
        part = "Most" if setting.elements.get("bf16") else "All"
        return (
            f"{part} gradients are computed in fp32, where a loss scale does nothing.",
            "Enter torch.autocast in the forward if the training is meant to run in fp16; else leave the scaler out.",
        )
    return (
        "Either the gradients are as good as zero, or the model does not run in fp16.",
        "See on the layers' page what the gradients are, and check that the forward runs under torch.autocast in fp16.",
    )
