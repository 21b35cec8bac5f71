"""CALIBRATION: the first skips, while the scale settles. Normal, and said so."""

from __future__ import annotations

from scalescope_server.findings.history import MOST_CALIBRATION_SKIPS, Calibration, History
from scalescope_server.findings.words import scale_code, scale_text, times
from scalescope_server.store.records import FindingRow

# A scale that falls below 1 is no calibration, whatever else it is, and this detector keeps silent.
LOWEST_SCALE = 1.0
# From so many skips on, a better start is worth a line; one or two skips are nobody's problem.
WORTH_A_BETTER_START = 4


def find(history: History) -> list[FindingRow]:
    return [_finding(found, history) for found in history.calibrations if _is_benign(found)]


def _is_benign(found: Calibration) -> bool:
    return found.skips <= MOST_CALIBRATION_SKIPS and found.to_scale > LOWEST_SCALE


def _finding(found: Calibration, history: History) -> FindingRow:
    settled = found.settled_at is not None
    # The scale that follows the last skip; while it still calibrates, the one in force.
    scale = found.to_scale / 2 if settled or history.scale is None else history.scale
    updates = "update was" if found.skips == 1 else "updates were"
    return FindingRow(
        code="CALIBRATION",
        subject="scale",
        severity="info",
        sentence=(
            f"{found.skips} {updates} skipped while the scale settled from {scale_text(found.from_scale)} "
            f"to {scale_text(scale)}. This is normal."
        ),
        evidence={"skips": found.skips, "from_scale": found.from_scale, "to_scale": scale},
        advice=_advice(found, scale),
        first_step=found.first_step,
        last_step=found.last_step if settled else None,
        seen_step=found.last_step,
    )


def _advice(found: Calibration, scale: float) -> str:
    if found.skips < WORTH_A_BETTER_START:
        return "Nothing to do."
    return (
        f"Nothing is wrong. GradScaler(init_scale={scale_code(scale)}) would save these {times(found.skips, 'update')}."
    )
