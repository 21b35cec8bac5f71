"""Weights & Biases: a run. Its step stays the user's: ours are on an axis of their own, ``scalescope/step``.

A row of history ends at the user's next ``log``, and keeps the last value of a name. So a row has the latest of what
was echoed since the row before, and ``skipped_total`` is what counts skips.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scalescope.mirrors.mirror import Finding, Point

# An alert reaches people. What is only to be known stands in the summary.
_ALERTS = {"warning": "WARN", "critical": "ERROR"}


class WandbMirror:
    """Numbers in the history, findings in the summary; those that are more than information alert as well."""

    def __init__(self, run: Any) -> None:  # noqa: ANN401 - wandb's, by what it has
        self._run = run
        self._defined = False

    def scalars(self, points: Sequence[Point]) -> None:
        if not self._defined:
            self._run.define_metric("scalescope/step", hidden=True)
            self._run.define_metric("scalescope/*", step_metric="scalescope/step")
            self._defined = True
        latest: dict[str, float] = {}
        for point in points:
            latest.update(point.values)
        if "skipped" in latest:
            latest["skipped"] = max(point.values.get("skipped", 0.0) for point in points)
        values = {f"scalescope/{name}": value for name, value in latest.items()}
        # Not committed: the row, and with it the step, is the user's to end.
        self._run.log({"scalescope/step": points[-1].step, **values}, commit=False)

    def finding(self, finding: Finding) -> None:
        state = "withdrawn: " if finding.withdrawn else ""
        self._run.summary.update({f"scalescope/findings/{finding.code}": f"{state}{finding.sentence}"})
        level = _ALERTS.get(finding.severity)
        if level and not finding.withdrawn:
            self._run.alert(f"Scalescope: {finding.code}", f"{finding.sentence}\n\n{finding.advice}", level=level)
