"""SCALER_USELESS: a loss scaler where gradients are computed in a format that needs none."""

from __future__ import annotations

from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.findings.words import percent
from scalescope_server.store.judging import Setting
from scalescope_server.store.records import FindingRow

# Updates after which the format of nearly every gradient is known: those looked for longest are found in the 16th.
KNOWN_AFTER = 20
# Of the elements whose format is known, the part that must be known at all.
KNOWN_SHARE = 0.5

_WIDE = ("bf16", "fp32")


def find(setting: Setting, rules: ScalerRules, *, updates: int, first_step: int, seen: int) -> list[FindingRow]:
    """``updates``: those of the newest segment, which begins at ``first_step`` and has a scale; ``seen`` the last."""
    wide = wide_format(setting)
    if wide is None or not (rules.told and rules.moves) or updates < KNOWN_AFTER:
        return []
    return [
        FindingRow(
            code="SCALER_USELESS",
            subject="scale",
            severity="info",
            sentence=(
                f"Gradients are computed in {wide} ({percent(_share(setting, wide))} of what is known), which has the "
                "range of fp32: the loss scaler does nothing for them but cost time and, now and then, an update."
            ),
            evidence={"format": wide, "autocast": list(setting.autocast)},
            advice=f"Leave it out{': GradScaler(enabled=False)' if rules.is_torch else ''}.",
            first_step=first_step,
            last_step=None,
            seen_step=seen,
        )
    ]


def wide_format(setting: Setting) -> str | None:
    """The format of most gradients where none is computed in a narrow one; None while that is not known."""
    known = {name: count for name, count in setting.elements.items() if name}
    total = sum(setting.elements.values())
    narrow = [name for name in (*known, *setting.autocast) if name not in _WIDE]
    if narrow or not known or sum(known.values()) < KNOWN_SHARE * total:
        return None
    brain = "bf16" in setting.autocast or known.get("bf16", 0) > known.get("fp32", 0)
    return "bf16" if brain else "fp32"


def _share(setting: Setting, wide: str) -> float:
    known = sum(count for name, count in setting.elements.items() if name)
    return setting.elements.get(wide, 0) / max(known, 1)
