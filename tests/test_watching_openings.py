"""Which findings rules see open at which update, however late the updates are judged."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from scalescope_server.findings.catalogue import Case, remember
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.store.judging import Setting, StepRow
from scalescope_server.watching.openings import FROM_THE_FIRST, Opening, fold_openings, followed, remembered

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


def test_what_was_found_is_gone_by_where_all_of_it_is_remembered_and_judged_anew_where_not() -> None:
    case, changes = fold_openings(
        Case(), Scaler().run(60, lambda _, scale: scale > 2.0**13), ScalerRules.of(None), OVER
    )
    whole = followed(FROM_THE_FIRST, changes)
    anew = Case(), FROM_THE_FIRST

    def stored(of: Case, opened: Sequence[Opening]) -> bytes:
        return remember(of)[:-1] + b',"opened":' + msgspec.json.encode(opened) + b"}"

    assert remembered(stored(case, whole)) == (case, whole)
    # The first of them is forgotten, or nobody looked.
    assert remembered(stored(case, whole[1:])) == remembered(remember(case)) == anew
    assert remembered(b"") == remembered(stored(msgspec.structs.replace(case, version=0), whole)) == anew
