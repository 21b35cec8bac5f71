"""CALIBRATION: the first skips, while the scale settles. Normal, and said so."""

from __future__ import annotations

from scalescope_server.findings.history import MOST_CALIBRATION_SKIPS, Calibration, History
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.findings.words import scale_text, times
from scalescope_server.store.records import FindingRow

# A scale that falls below 1 is no calibration, whatever else it is, and this detector keeps silent.
LOWEST_SCALE = 1.0
# From so many skips on, a better start is worth a line; one or two skips are nobody's problem.
WORTH_A_BETTER_START = 4
# A library may let one or two skips pass before it halves. So many at one scale, and nothing is settling.
STILL_SKIPS = 4


def find(history: History, rules: ScalerRules) -> list[FindingRow]:
    return [_finding(found, rules) for found in history.calibrations if _is_benign(found)]


def _is_benign(found: Calibration) -> bool:
    comes_down = found.lowest < found.from_scale or found.skips < STILL_SKIPS
    settles = comes_down and found.skips <= MOST_CALIBRATION_SKIPS and found.lowest > LOWEST_SCALE
    return settles and not found.broken


def _finding(found: Calibration, rules: ScalerRules) -> FindingRow:
    updates = "update was" if found.skips == 1 else "updates were"
    return FindingRow(
        code="CALIBRATION",
        subject="scale",
        severity="info",
        sentence=f"{found.skips} {updates} skipped while {_movement(found)}. This is normal.",
        evidence={"skips": found.skips, "from_scale": found.from_scale, "to_scale": found.to_scale},
        advice=_advice(found, rules),
        first_step=found.first_step,
        last_step=found.last_step if found.settled else None,
        seen_step=found.last_step,
    )


def _movement(found: Calibration) -> str:
    if found.to_scale is None:
        return f"the scale comes down from {scale_text(found.from_scale)}"
    return f"the scale settled from {scale_text(found.from_scale)} to {scale_text(found.to_scale)}"


def _advice(found: Calibration, rules: ScalerRules) -> str:
    if found.skips < WORTH_A_BETTER_START or found.to_scale is None:
        return "Nothing to do."
    saved = times(found.skips, "update")
    return f"Nothing is wrong. {rules.written(found.to_scale)} would save these {saved}."
