"""HEALTHY_PROBING: rare skips right after a doubling, and the scale comes back. A chip, never an alarm."""

from __future__ import annotations

from scalescope_server.findings.history import SKIP_SHARE, History
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.findings.words import percent, scale_text
from scalescope_server.store.records import FindingRow


def find(history: History, rules: ScalerRules) -> list[FindingRow]:
    """Nothing before the first rejected doubling, nor when skips are many or mostly have another cause."""
    probes = [skip for skip in history.skips if skip.after_growth is not None]
    updates, share = history.window_updates(rules), history.skip_share(rules)
    if history.first_probe is None or not probes or len(probes) * 2 < len(history.skips) or share > SKIP_SHARE:
        return []
    ceiling = min(skip.scale for skip in probes)
    return [
        FindingRow(
            code="HEALTHY_PROBING",
            subject="scale",
            severity="info",
            sentence=(
                f"{len(history.skips)} of the last {updates:,} updates were skipped ({percent(share)}), after the "
                f"scale was doubled to {scale_text(ceiling)}: the scaler probes its ceiling. This is normal."
            ),
            evidence={"skips": [skip.step for skip in history.skips][-50:], "updates": updates, "ceiling": ceiling},
            advice="Nothing to do.",
            first_step=history.first_probe,
            last_step=None,
            seen_step=history.last_step,
        )
    ]
