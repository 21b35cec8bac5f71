"""The scale comes down: settling, sagging, collapsing, zero."""

from __future__ import annotations

import msgspec
import pytest
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.store.judging import Setting, StepRow

from tests.timelines import TORCH, Scaler, codes_over_time, found_of


def always(_step: int, _scale: float) -> bool:
    return True


def test_what_no_scale_cures_is_a_collapse_from_where_the_scale_is_below_1() -> None:
    seen = list(codes_over_time(Scaler().run(60, always), every=6))
    assert seen[0] == seen[1] == {"CALIBRATION"}
    assert seen[3:] == [{"SCALE_COLLAPSE"}] * 7


@pytest.mark.parametrize(
    ("updates", "severity", "text"),
    [
        (30, "warning", "Below 1 it lowers gradients instead of lifting them."),
        (45, "critical", "So low, gradients up to 1/2 are zero in fp16."),
        (150, "fatal", "an update that is found finite writes NaN into the weights."),
    ],
)
def test_how_low_it_fell_is_how_bad_it_is(updates: int, severity: str, text: str) -> None:
    collapse = found_of(Scaler().run(updates, always))["SCALE_COLLAPSE"]
    assert collapse.severity == severity
    assert text in collapse.sentence
    assert f"{updates} halvings changed nothing: this is no matter of the scale." in collapse.sentence
    assert (collapse.first_step, collapse.last_step) == (17, None)


def test_halvings_are_counted_by_how_far_the_scale_fell() -> None:
    """At 0 there is nothing left to halve, and a backoff of 0.8 halves nothing."""
    rows = Scaler().run(200, always)
    assert " 166 halvings changed nothing" in found_of(rows)["SCALE_COLLAPSE"].sentence
    rows = [StepRow(step, 0, 16 * 0.8**step, True, 0, "head.weight") for step in range(22)]
    sentence = found_of(rows, ScalerRules(2000, "GradScaler", 2.0, 0.8))["SCALE_COLLAPSE"].sentence
    assert sentence.endswith("Below 1 it lowers gradients instead of lifting them.")


def test_skips_whose_loss_is_not_finite_are_no_scale_that_settles() -> None:
    """The forward overflows by itself, and so it does at every scale."""
    rows = Scaler().run(40, lambda _, scale: scale > 2.0**10)
    assert set(found_of(rows)) == {"CALIBRATION"}
    broken = [msgspec.structs.replace(row, broken=True) for row in rows]
    assert found_of(broken) == {}
    # One that ended before a single update was applied.
    ended = found_of(broken[:5], setting=Setting(ended=True))
    found = ended.pop("NO_STEP_APPLIED")
    assert (ended, found.severity) == ({}, "warning")
    assert "normal" not in found.sentence
    assert "look for the first value that is not finite" in found.advice


def test_a_fatal_scale_begins_where_its_inverse_is_infinite() -> None:
    """2^16 is halved 144 times on the way to 2^-128."""
    assert found_of(Scaler().run(144, always))["SCALE_COLLAPSE"].severity == "critical"
    assert found_of(Scaler().run(145, always))["SCALE_COLLAPSE"].severity == "fatal"


def test_the_longest_run_of_skips_is_told_with_its_ends_though_it_was_logged_seldom() -> None:
    scaler = Scaler(scale=2.0**17)
    rows = scaler.run(4100) + scaler.run(91, always)
    collapse = found_of(rows)["SCALE_COLLAPSE"]
    assert "91 of them in a row (4,100 to 4,190)" in collapse.sentence
    assert "head.weight is the first gradient that is not" in collapse.advice
    assert "checkpoint before update 4,100" in collapse.advice


def test_a_divergence_with_a_few_good_updates_between_is_a_collapse_too() -> None:
    rows = Scaler(scale=2.0**8).run(30, lambda step, _: step % 4 != 1)
    assert found_of(rows)["SCALE_COLLAPSE"].severity == "warning"


def test_a_collapse_is_over_when_the_scale_is_back_and_stays_in_the_record() -> None:
    scaler = Scaler(scale=2.0**6, interval=10)
    rows = scaler.run(10, always) + scaler.run(200)
    seen = list(codes_over_time(rows, 30, ScalerRules(10)))
    assert "SCALE_COLLAPSE" in seen[0]
    assert "scale_collapse" in seen[-1]


def test_a_scale_that_somebody_set_below_1_has_not_collapsed() -> None:
    assert found_of(Scaler(scale=0.25).run(100, lambda step, _: step == 50)) == {}
    assert set(found_of(Scaler(scale=1.0).run(50, lambda step, _: step == 0))) <= {"CALIBRATION"}


@pytest.mark.parametrize("name", ["DynamicLossScaler", "DynamicGradScaler"])
def test_a_library_that_stops_at_1_has_collapsed_where_it_comes_there(name: str) -> None:
    """DeepSpeed raises at the next overflow, before that update is told."""
    rows = Scaler().run(16, always)
    assert rows[-1].scale == 2.0
    assert "SCALE_COLLAPSE" in found_of(rows, ScalerRules(1000, name))
    assert "SCALE_COLLAPSE" not in found_of(rows)


def test_a_floor_that_holds_again_is_no_collapse_any_more() -> None:
    rules, scaler = ScalerRules(1000, "DynamicGradScaler"), Scaler(interval=1000, floor=1.0)
    rows = scaler.run(25, always) + scaler.run(60)
    seen = list(codes_over_time(rows, 25, rules))
    assert "SCALE_COLLAPSE" in seen[0]
    assert "scale_collapse" in seen[-1]


def test_calibration_from_the_highest_start_in_use_is_no_collapse() -> None:
    assert set(found_of(Scaler(scale=2.0**32).run(60, lambda _, scale: scale > 2.0**3))) == {"CALIBRATION"}


def test_a_scale_of_zero_is_told_with_what_it_costs_and_where_to_go_back_to() -> None:
    scaler = Scaler()
    rows = scaler.run(100) + scaler.run(170, always)
    first = next(row.step for row in rows if row.scale == 0)
    zero = found_of(rows)["SCALE_ZERO"]
    assert (zero.severity, zero.first_step, zero.last_step) == ("fatal", first, None)
    assert "170 updates in a row were lost, from 100 on" in zero.sentence
    assert "checkpoint of update 99 or before" in zero.advice


def test_a_start_next_to_zero_is_told_as_zero_alone() -> None:
    found = found_of(Scaler(scale=2.0**-149).run(1, always) + [StepRow(s, 0, 0.0, True, 0, None) for s in range(1, 9)])
    assert set(found) == {"SCALE_ZERO"}
    assert "no update was ever applied" in found["SCALE_ZERO"].advice


def test_a_scale_of_zero_is_over_with_a_new_start() -> None:
    scaler = Scaler()
    rows = scaler.run(10) + scaler.run(170, always)
    scaler.resume(2.0**10)
    found = found_of(rows + scaler.run(50))
    assert found["SCALE_ZERO"].last_step == 179
    assert found["SCALE_COLLAPSE"].last_step == 179


def sagging(every: int, updates: int, start: float = 2.0**15) -> list[StepRow]:
    """Skips about ``every`` so many updates, sooner or later by a tenth, and never a doubling."""
    skipped = {30 + every * n + n % 3 * every // 10 for n in range(1, updates // every)}
    return Scaler(scale=start).run(updates, lambda step, _: step in skipped)


def test_skips_that_come_faster_than_clean_windows_are_a_drift() -> None:
    rows = sagging(61, 700)
    found = found_of(rows)
    drift = found["SCALE_DRIFT_DOWN"]
    assert drift.severity == "warning"
    assert drift.last_step is None
    assert "The scale sagged from 2^15 to 2^" in drift.sentence
    assert "doubled on 0" in drift.sentence
    assert "At this pace it is down to 1, where it lifts no gradient any more, in about" in drift.sentence
    assert "SCALE_THRASH" not in found


def test_a_drift_needs_time_and_occasions() -> None:
    """What comes down at once is settling, and a few skips in a long time are nobody's matter."""
    scaler = Scaler(scale=2.0**15)
    quick = scaler.run(30) + scaler.run(5, always) + scaler.run(1500)
    assert "SCALE_DRIFT_DOWN" not in found_of(quick)
    assert "SCALE_DRIFT_DOWN" not in found_of(sagging(1000, 4000))


def test_what_is_lost_above_the_ordinary_scale_is_no_drift() -> None:
    assert "SCALE_DRIFT_DOWN" not in found_of(sagging(61, 700, start=2.0**32))


@pytest.mark.parametrize("interval", [150, 200, 2000])
def test_a_scale_that_climbs_back_does_not_drift_however_long_it_probes(interval: int) -> None:
    scaler = Scaler(scale=2.0**14, interval=interval)
    rows = scaler.run(30 * interval, lambda step, scale: scale > 2.0 ** (13 - step // (15 * interval)))
    for codes in codes_over_time(rows, interval, ScalerRules(interval)):
        assert codes <= {"CALIBRATION", "calibration", "HEALTHY_PROBING"}


def test_a_drift_is_over_when_the_scale_climbs_back() -> None:
    scaler = Scaler(scale=2.0**15, interval=200)
    rules = ScalerRules(200)
    rows = scaler.run(30) + scaler.run(900, lambda step, _: step % 97 == 0)
    assert "SCALE_DRIFT_DOWN" in found_of(rows, rules)
    assert "scale_drift_down" in list(codes_over_time(rows + scaler.run(3000), 100, rules))[-1]


def test_the_layer_that_overflows_and_the_floor_are_evidence_of_a_drift() -> None:
    drift = found_of(sagging(61, 700), TORCH)["SCALE_DRIFT_DOWN"]
    assert drift.evidence["parameter"] == "head.weight"
    assert isinstance(drift.evidence["updates_to_1"], int)
