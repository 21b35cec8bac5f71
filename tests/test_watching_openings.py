"""Which findings rules see open at which update, however late the updates are judged."""

from __future__ import annotations

from scalescope_server.findings.catalogue import Case
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.store.judging import Setting, StepRow
from scalescope_server.watching.openings import fold_openings

from tests.timelines import Scaler

OVER = Setting(ended=True)


def opened(steps: list[StepRow], setting: Setting = OVER) -> dict[int, set[str]]:
    """By the update from which on they are open."""
    _, changes = fold_openings(Case(), steps, ScalerRules.of(None), setting)
    return {position.step: set(codes) for position, codes in changes}


def test_the_first_skips_of_a_training_that_is_judged_after_its_end_are_a_scale_that_settles() -> None:
    settling = Scaler().run(60, lambda _, scale: scale > 2.0**13)
    assert opened(settling) == opened(settling, Setting()) == {0: {"CALIBRATION"}, 23: set()}


def test_what_was_never_applied_is_told_from_where_it_matters() -> None:
    fixed = [StepRow(step, 0, 512.0, True, None, "head.weight") for step in range(12)]
    assert opened(fixed) == opened(fixed, Setting()) == {0: {"CALIBRATION"}, 3: set(), 7: {"NO_STEP_APPLIED"}}
