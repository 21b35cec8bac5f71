"""SCALER_RECREATED: another scaler takes the place of the last one, and what that had learned is lost."""

from __future__ import annotations

from scalescope_server.findings.episodes import Stretch, closed, held, open_one
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.findings.words import scale_text, times
from scalescope_server.store.judging import StepRow
from scalescope_server.store.records import FindingRow

# One new scaler may be meant so: a second phase, a second optimizer. Who makes one again and again does it in a loop.
REMADE_OFTEN = 3


class Remade(Stretch, frozen=True):
    """New scalers in one segment: how many, the last where, and how many updates of theirs were skipped.

    ``left``: where the one before had left the scale at the last of them that lost it, ``found``: where the new one
    began; null where none lost it.
    """

    seen_step: int
    count: int
    left: float | None
    found: float | None


def advance(
    remade: tuple[Remade, ...], step: StepRow, before: StepRow | None, rules: ScalerRules
) -> tuple[Remade, ...]:
    """``remade`` after ``step``, which follows ``before``."""
    if before is not None and before.segment != step.segment:
        remade = _ended(remade)
    if not step.recreated:
        return remade
    now = open_one(remade) or Remade(step.step, 0, None, None, first_step=step.step)
    left, found = now.left, now.found
    if before is not None and before.scale is not None and before.segment == step.segment:
        after = left_by(before, rules)
        left, found = (left, found) if after == step.scale else (after, step.scale)
    return held(remade, Remade(step.step, now.count + 1, left, found, first_step=now.first_step))


def left_by(step: StepRow, rules: ScalerRules) -> float:
    """Where an update leaves the scale by its scaler's settings."""
    scale = step.scale or 0.0
    if step.skipped:
        return scale * rules.backoff
    # torch tests whether it is equal: an interval that was lowered under the tracker never comes.
    due = step.growth_tracker is not None and step.growth_tracker + 1 == rules.growth_interval
    return scale * rules.growth if due else scale


def find(remade: tuple[Remade, ...]) -> list[FindingRow]:
    return [_finding(each) for each in remade if each.count >= REMADE_OFTEN]


def _ended(remade: tuple[Remade, ...]) -> tuple[Remade, ...]:
    now = open_one(remade)
    if now is None:
        return remade
    # One that was made anew once is no matter, and must not crowd out those that are.
    return closed(remade, now.seen_step) if now.count >= REMADE_OFTEN else remade[:-1]


def _finding(remade: Remade) -> FindingRow:
    lost = ""
    if remade.left is not None and remade.found is not None:
        lost = f" It was {scale_text(remade.left)} after an update and {scale_text(remade.found)} at the next."
    return FindingRow(
        code="SCALER_RECREATED",
        subject="scale",
        severity="warning",
        sentence=(
            f"The scaler was made anew {times(remade.count, 'time')}, and each new one begins from the start: what the "
            f"one before had learned of the scale is lost.{lost}"
        ),
        evidence={"times": remade.count, "left": remade.left, "found": remade.found},
        advice="Make one GradScaler before the loop, and keep it for the whole training.",
        first_step=remade.first_step,
        last_step=remade.last_step,
        seen_step=remade.seen_step,
    )
