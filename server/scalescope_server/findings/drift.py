"""SCALE_DRIFT_DOWN: skips come faster than the scale can climb back, and it sags over a long time.

Of healthy scalers each skip is paid back by a doubling, sooner or later. Here it is not.
"""

from __future__ import annotations

import math

import msgspec
from msgspec import Struct

from scalescope_server.findings.episodes import Stretch, closed, held, open_one
from scalescope_server.findings.words import scale_text, times
from scalescope_server.store.judging import StepRow
from scalescope_server.store.records import FindingRow

# Octaves that the scale must have lost. A healthy one loses one or two now and then, as gradients grow.
SAG_OCTAVES = 5
# Separate occasions: a single bad batch can cost several halvings in a row.
SAG_OCCASIONS = 5
# Updates from the first of them to the last. What comes down faster is settling, or collapses.
SAG_UPDATES = 100
# torch's own start. Only what is lost below it counts: a scale above it has not come down to where it belongs.
ORDINARY_SCALE = 65536.0
# A scale that is doubled once for every so many occasions, or more often, climbs back.
OCCASIONS_PER_DOUBLING = 4


class Sag(Struct, frozen=True):
    """Skips that were not paid back. ``top``: the scale that the first of them met; ``scale`` that of the last."""

    first_step: int
    top: float
    scale: float
    occasions: int
    doublings: int
    skip_step: int


class Drift(Stretch, frozen=True):
    """A stretch of sagging, with its figures at the last skip."""

    sag: Sag
    culprit: str | None


class State(Struct, frozen=True):
    sag: Sag | None = None
    drifts: tuple[Drift, ...] = ()


def advance(state: State, step: StepRow, before: StepRow | None, *, settled: bool) -> State:
    """``state`` after ``step``, which follows ``before``. ``settled``: whether the scale has, before or with it."""
    if step.scale is None:
        return state
    goes_on = before is not None and before.segment == step.segment and before.scale is not None
    grown = goes_on and before is not None and before.scale is not None and step.scale > before.scale
    if not (step.skipped or grown or not goes_on):
        return state
    sag = _doubled(state.sag) if grown else state.sag
    if sag is None or not goes_on:
        state, sag = _ended(state), None
    if not (step.skipped and settled):
        return State(sag, state.drifts)
    sag = _skipped(sag, step, step.scale)
    return State(sag, _followed(state.drifts, sag, step.culprit))


def find(drifts: tuple[Drift, ...], seen: int) -> list[FindingRow]:
    return [_finding(drift, seen) for drift in drifts]


def _doubled(sag: Sag | None) -> Sag | None:
    """None where it climbs back."""
    if sag is None or (sag.doublings + 1) * OCCASIONS_PER_DOUBLING > sag.occasions:
        return None
    return msgspec.structs.replace(sag, doublings=sag.doublings + 1)


def _ended(state: State) -> State:
    return State(None, closed(state.drifts, -1 if state.sag is None else state.sag.skip_step))


def _skipped(sag: Sag | None, step: StepRow, scale: float) -> Sag:
    if sag is None:
        return Sag(step.step, scale, scale, 1, 0, step.step)
    again = step.step > sag.skip_step + 1
    return Sag(sag.first_step, sag.top, scale, sag.occasions + again, sag.doublings, step.step)


def _followed(drifts: tuple[Drift, ...], sag: Sag, culprit: str | None) -> tuple[Drift, ...]:
    now = open_one(drifts)
    if now is None and not _drifts(sag):
        return drifts
    named = culprit or (None if now is None else now.culprit)
    return held(drifts, Drift(sag, named, first_step=sag.first_step))


def _drifts(sag: Sag) -> bool:
    long = sag.skip_step - sag.first_step >= SAG_UPDATES
    return long and sag.occasions >= SAG_OCCASIONS and _lost(sag) >= SAG_OCTAVES


def _lost(sag: Sag) -> float:
    """Octaves, of those below the ordinary scale."""
    return _octaves(min(sag.top, ORDINARY_SCALE), sag.scale)


def _octaves(top: float, scale: float) -> float:
    """From ``top`` down to ``scale``. A scale of 0 is another finding's matter."""
    return math.log2(top / scale) if top > 0 and scale > 0 else 0.0


def _finding(drift: Drift, seen: int) -> FindingRow:
    sag = drift.sag
    span = sag.skip_step - sag.first_step
    return FindingRow(
        code="SCALE_DRIFT_DOWN",
        subject="scale",
        severity="warning",
        sentence=(
            f"The scale sagged from {scale_text(sag.top)} to {scale_text(sag.scale)} within {times(span, 'update')}, "
            f"lowered on {times(sag.occasions, 'occasion')} and doubled on {sag.doublings}.{_outlook(sag, span)}"
        ),
        evidence={
            "from_scale": sag.top,
            "scale": sag.scale,
            "occasions": sag.occasions,
            "doublings": sag.doublings,
            "updates_to_1": _updates_to_one(sag, span),
            "parameter": drift.culprit,
        },
        advice=_advice(drift),
        first_step=drift.first_step,
        last_step=drift.last_step,
        seen_step=seen if drift.last_step is None else drift.last_step,
    )


def _updates_to_one(sag: Sag, span: int) -> int | None:
    """After how many more updates it reaches 1, if it goes on like this; null where it has."""
    pace = _octaves(sag.top, sag.scale) / span if span > 0 else 0.0
    return round(math.log2(sag.scale) / pace) if sag.scale > 1 and pace > 0 else None


def _outlook(sag: Sag, span: int) -> str:
    left = _updates_to_one(sag, span)
    if left is None:
        return ""
    return f" At this pace it is down to 1, where it lifts no gradient any more, in about {times(left, 'update')}."


def _advice(drift: Drift) -> str:
    layer = f"{drift.culprit} overflowed first at the last of them" if drift.culprit else "look at what overflows"
    return (
        f"Gradients grow faster than the scale can follow: {layer}. Compare loss and gradient norm before the skips; a "
        "lower learning rate, a clip, or bf16 keeps them in range."
    )
