"""SKIP_PERIODIC: skips come back at the same distance, so what runs only there is never trained."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from scalescope_server.findings.episodes import Stretch, closed, held, open_one
from scalescope_server.findings.words import times
from scalescope_server.store.judging import StepRow
from scalescope_server.store.records import FindingRow

# Skips at one distance from each other, so many in a row: by chance that does not happen, at any rate of skips.
BEATS = 6
# While the scale has not settled, a loss that runs every few updates may still be on its way to one that fits it.
BEATS_UNSETTLED = 12


class Beat(Struct, frozen=True):
    """Skips at one distance: the first and the last, and how many. A ``period`` of 0 is that of a single one.

    Of skips in a row it is the first that counts. ``scale`` is the one that the last met, ``doubled`` whether it was
    doubled since.
    """

    segment: int
    first_step: int
    skip_step: int
    count: int
    period: int
    scale: float | None
    doubled: bool = False


class Rhythm(Stretch, frozen=True):
    """A stretch in which skips kept their distance."""

    beat: Beat
    culprit: str | None


class State(Struct, frozen=True):
    beat: Beat | None = None
    rhythms: tuple[Rhythm, ...] = ()


def advance(state: State, step: StepRow, before: StepRow | None, *, settled: bool) -> State:
    """``state`` after ``step``, which follows ``before``. ``settled``: whether the scale has."""
    now = open_one(state.rhythms)
    if now is not None and (step.segment != now.beat.segment or step.step > now.beat.skip_step + now.beat.period):
        state, now = State(state.beat, closed(state.rhythms, now.beat.skip_step)), None
    doubled = _is_doubled(step, before)
    beat = _noted(state.beat, doubled=doubled)
    if not step.skipped or _goes_on(step, before):
        return state if beat is state.beat else State(beat, state.rhythms)
    if _is_rejection(beat, step, doubled=doubled):
        return State(_noted(beat, doubled=False, again=True), state.rhythms)
    beat = _followed(beat, step)
    known = now is not None and now.beat.period == beat.period
    if not known and beat.count < (BEATS if settled else BEATS_UNSETTLED):
        return State(beat, state.rhythms)
    culprit = step.culprit or (None if now is None else now.culprit)
    return State(beat, held(state.rhythms, Rhythm(beat, culprit, first_step=beat.first_step)))


def find(rhythms: tuple[Rhythm, ...]) -> list[FindingRow]:
    return [_finding(rhythm) for rhythm in rhythms]


def _is_doubled(step: StepRow, before: StepRow | None) -> bool:
    """Whether ``step`` is the first at a scale that is higher than before."""
    if before is None or before.segment != step.segment or before.scale is None or step.scale is None:
        return False
    return step.scale > before.scale


def _noted(beat: Beat | None, *, doubled: bool, again: bool = False) -> Beat | None:
    """With a doubling since its last skip; ``again``: with what was doubled taken back."""
    if beat is None or beat.doubled == doubled or not (doubled or again):
        return beat
    return msgspec.structs.replace(beat, doubled=doubled)


def _goes_on(step: StepRow, before: StepRow | None) -> bool:
    """Whether the update before was skipped as well."""
    return before is not None and before.skipped and before.segment == step.segment


def _is_rejection(beat: Beat | None, step: StepRow, *, doubled: bool) -> bool:
    """Whether it is a doubled scale that is skipped, at once or not higher than where it was skipped before.

    That comes back once an interval: the scaler's own rhythm.
    """
    if beat is None or beat.segment != step.segment or beat.scale is None or step.scale is None:
        return doubled
    return beat.doubled and step.scale <= (2 * beat.scale if doubled else beat.scale)


def _followed(beat: Beat | None, step: StepRow) -> Beat:
    if beat is None or beat.segment != step.segment:
        return Beat(step.segment, step.step, step.step, 1, 0, step.scale)
    period = step.step - beat.skip_step
    if period == beat.period:
        return Beat(step.segment, beat.first_step, step.step, beat.count + 1, period, step.scale)
    return Beat(step.segment, beat.skip_step, step.step, 2, period, step.scale)


def _finding(rhythm: Rhythm) -> FindingRow:
    beat = rhythm.beat
    return FindingRow(
        code="SKIP_PERIODIC",
        subject="scale",
        severity="warning",
        sentence=(
            f"An update is skipped every {times(beat.period, 'update')}, {beat.count:,} times in a row since update "
            f"{beat.first_step:,}: whatever runs only there is not trained."
        ),
        evidence={
            "period": beat.period,
            "residue": beat.first_step % beat.period,
            "skips": beat.count,
            "last_skip": beat.skip_step,
            "parameter": rhythm.culprit,
        },
        advice=(
            f"Look at what happens every {times(beat.period, 'update')}: a loss term that is computed now and then, or "
            "one batch of the data that comes around. Compute it in fp32, or weigh it less."
        ),
        first_step=rhythm.first_step,
        last_step=rhythm.last_step,
        seen_step=beat.skip_step,
    )
