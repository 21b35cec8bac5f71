"""Whether what the judge found of a run is what it finds of all of its updates, read at once at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from scalescope_server.findings.catalogue import Case, conclude, findings, fold
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.judge_findings import PASS_ROWS
from scalescope_server.store.engine import Store
from scalescope_server.store.records import FindingRow, RunId

from tests.small_link import until


def wrongly_judged(store: Store, run: RunId) -> list[str]:
    """Wait until the judge has come to the end of the run; a sentence if it found something else than is there."""
    until(lambda: run not in store.reader.unjudged())
    rules, case, last = ScalerRules.of(store.reader.scaler(run)), Case(), False
    while not last:
        steps, _ = store.reader.steps_after(run, case.position, PASS_ROWS)
        case, last = fold(case, steps, rules), len(steps) < PASS_ROWS
    setting = store.reader.setting(run)
    told = findings(conclude(case, setting), rules, setting)
    expected = _brief(told)
    # The end of a run tells something too, and is judged after the last update.
    with contextlib.suppress(AssertionError):
        until(lambda: _brief(store.reader.findings(run)) == expected)
    found = _brief(store.reader.findings(run))
    return [] if found == expected else [f"expected the findings {sorted(expected)}, got {sorted(found)}"]


def _brief(found: Iterable[FindingRow]) -> set[tuple[str, int, str]]:
    return {(finding.code, finding.first_step, finding.sentence) for finding in found}
