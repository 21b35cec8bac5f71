"""NO_STEP_APPLIED: every attempted update of a start was skipped, so nothing was trained at all."""

from __future__ import annotations

import msgspec

from scalescope_server.findings.episodes import Stretch, closed, held, open_one
from scalescope_server.findings.history import MOST_CALIBRATION_SKIPS
from scalescope_server.findings.words import scale_text, times
from scalescope_server.store.judging import StepRow
from scalescope_server.store.records import FindingRow

# So many skips, and a scale that did not move: nothing settles here, and nothing will change.
UNMOVED_SKIPS = 8


class Barren(Stretch, frozen=True):
    """The updates of a segment up to its first that was applied, if there was one: all skipped.

    ``from_scale`` and ``scale``: those of the first and of the last of them, null without a scaler. ``left_out``: how
    many of them no scaler skipped, but the loop. ``broken``: in how many the loss was not finite.
    """

    segment: int
    skips: int
    from_scale: float | None
    scale: float | None
    left_out: int = 0
    broken: int = 0


def advance(barren: tuple[Barren, ...], step: StepRow, before: StepRow | None) -> tuple[Barren, ...]:
    """``barren`` after ``step``, which follows ``before``."""
    begins = before is None or before.segment != step.segment
    now, skipped = open_one(barren), step.skipped or step.left_out
    if now is None and not (begins and skipped):
        return barren
    if now is not None and (begins or not skipped):
        # What was settling is no matter, and must not crowd out what is.
        barren = closed(barren, now.first_step + now.skips - 1) if _matters(now) else barren[:-1]
        now = None
    if not skipped:
        return barren
    now = now or Barren(step.segment, 0, step.scale, step.scale, first_step=step.step)
    left_out, broken = now.left_out + step.left_out, now.broken + step.broken
    longer = msgspec.structs.replace(now, skips=now.skips + 1, scale=step.scale, left_out=left_out, broken=broken)
    return held(barren, longer)


def find(barren: tuple[Barren, ...], *, ended: bool) -> list[FindingRow]:
    """``ended``: the training is over. Until then, few skips at the start are the scale that settles."""
    return [_finding(each) for each in barren if _matters(each) or (ended and each.last_step is None)]


def _matters(barren: Barren) -> bool:
    unmoved = barren.skips >= UNMOVED_SKIPS and barren.scale == barren.from_scale
    return unmoved or barren.skips > MOST_CALIBRATION_SKIPS


def _finding(barren: Barren) -> FindingRow:
    # What no scale mends does not settle.
    matters = _matters(barren) or barren.broken > 0
    why = "" if matters else " The scale was still settling, which is normal: the training ended before it had."
    why = _by_the_loop(barren) or why
    return FindingRow(
        code="NO_STEP_APPLIED",
        subject="scale",
        severity="warning" if matters else "info",
        sentence=f"{_count(barren.skips)}{_scales(barren)}.{why}",
        evidence={
            "skips": barren.skips,
            "left_out": barren.left_out,
            "from_scale": barren.from_scale,
            "scale": barren.scale,
        },
        advice=_advice(barren, matters=matters),
        first_step=barren.first_step,
        last_step=barren.last_step,
        seen_step=barren.first_step + barren.skips - 1,
    )


def _by_the_loop(barren: Barren) -> str:
    if not barren.left_out:
        return ""
    of_them = "all" if barren.left_out == barren.skips else f"{barren.left_out:,}"
    return f" In {of_them} of them the scaler found nothing, but an optimizer that it had unscaled was never stepped."


def _count(skips: int) -> str:
    if skips == 1:
        return "The only update was not applied, but skipped"
    return f"None of {times(skips, 'update')} was applied: all were skipped"


def _scales(barren: Barren) -> str:
    if barren.scale is None or barren.from_scale is None:
        return ""
    if barren.scale == barren.from_scale:
        return f" at a scale of {scale_text(barren.scale)}"
    way = "down to" if barren.scale < barren.from_scale else "to"
    return f", from a scale of {scale_text(barren.from_scale)} {way} {scale_text(barren.scale)}"


def _advice(barren: Barren, *, matters: bool) -> str:
    if 2 * barren.left_out > barren.skips:
        return "See why scaler.step() is not called for each optimizer, or raises: its parameters may get no gradient."
    if not matters:
        return "Nothing is wrong: the weights move once an update fits."
    if barren.scale is not None and barren.scale == barren.from_scale:
        return "The scale does not come down: lower it, or let it move. If none fits, look for what is not finite."
    return "No scale fits: look for the first value that is not finite, in the inputs, the forward or the loss."
