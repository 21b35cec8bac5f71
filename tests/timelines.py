"""Simulated updates for the detectors' tests, and what is found of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scalescope_server.findings.catalogue import Case, conclude, findings, fold, recall, remember
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.store.judging import Setting, StepRow
from scalescope_server.store.records import FindingRow

TORCH = ScalerRules(2000)


@dataclass
class Scaler:
    """torch's rule, told by the updates that overflow: what it was at each, over segments."""

    scale: float = 65536.0
    interval: int = 2000
    floor: float = 0.0
    tracker: int = 0
    segment: int = 0
    step: int = 0

    def run(self, updates: int, overflows: Callable[[int, float], bool] = lambda _step, _scale: False) -> list[StepRow]:
        """So many more updates; ``overflows`` says of each step and scale whether it is skipped."""
        rows = []
        for _ in range(updates):
            skipped = overflows(self.step, self.scale)
            culprit = "head.weight" if skipped else None
            rows.append(StepRow(self.step, self.segment, self.scale, skipped, self.tracker, culprit))
            self._update(skipped=skipped)
            self.step += 1
        return rows

    def _update(self, *, skipped: bool) -> None:
        self.tracker = 0 if skipped else self.tracker + 1
        if skipped:
            # In fp32, as torch keeps it: half of 2^-149 is 0.
            self.scale = max(float(np.float32(self.scale / 2)), self.floor)
        elif self.tracker == self.interval:
            self.scale, self.tracker = min(self.scale * 2, 2.0**127), 0

    def resume(self, scale: float | None = None) -> None:
        """The training starts anew, at the scale it was left at or another one."""
        self.segment += 1
        if scale is not None:
            self.scale, self.tracker = scale, 0


def found_of(
    rows: Sequence[StepRow], rules: ScalerRules = TORCH, *, setting: Setting | None = None
) -> dict[str, FindingRow]:
    """By code, the last of each."""
    given = setting or Setting()
    return {finding.code: finding for finding in findings(conclude(fold(Case(), rows, rules), given), rules, given)}


def codes_over_time(rows: Sequence[StepRow], every: int, rules: ScalerRules = TORCH) -> Iterator[set[str]]:
    """What is found after each ``every`` updates; a code in lower case is over. The judge is started anew each time."""
    case = Case()
    for start in range(0, len(rows), every):
        recalled = recall(remember(fold(case, rows[start : start + every], rules)))
        assert recalled is not None
        case = recalled
        yield {f.code if f.last_step is None else f.code.lower() for f in findings(case, rules)}
