"""The scaler is not used as it was meant: made anew, not restored, not needed, never applied, or nothing to scale."""

from __future__ import annotations

import msgspec
import pytest
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.store.judging import Setting, StepRow

from tests.timelines import Scaler, codes_over_time, found_of

HALF = Setting(elements={"fp16": 900, "fp32": 100}, autocast=("fp16",))
BRAIN = Setting(elements={"bf16": 900, "fp32": 100}, autocast=("bf16",))
FULL = Setting(elements={"fp32": 1000, "": 10})


def test_a_scaler_made_anew_at_each_update_is_told_and_nothing_else() -> None:
    rows = [StepRow(step, 0, 65536.0, True, 0, None, recreated=step > 0) for step in range(20)]
    found = found_of(rows)
    assert set(found) == {"SCALER_RECREATED"}
    assert "made anew 19 times" in found["SCALER_RECREATED"].sentence
    assert "It was 2^15 after an update and 2^16 at the next." in found["SCALER_RECREATED"].sentence
    assert found["SCALER_RECREATED"].severity == "warning"


def test_a_second_scaler_is_no_scaler_made_anew_again_and_again() -> None:
    rows = Scaler(scale=2.0**10).run(100)
    rows[50] = msgspec.structs.replace(rows[50], recreated=True)
    assert found_of(rows) == {}


def test_a_scaler_made_anew_in_each_epoch_is_told_from_the_third_on() -> None:
    scaler = Scaler()
    rows: list[StepRow] = []
    for _ in range(5):
        scaler.scale = 65536.0
        epoch = scaler.run(100, lambda _, scale: scale > 2.0**13)
        rows += [msgspec.structs.replace(epoch[0], recreated=bool(rows)), *epoch[1:]]
    seen = list(codes_over_time(rows, 100))
    assert "SCALER_RECREATED" not in seen[2]
    assert "SCALER_RECREATED" in seen[3]
    found = found_of(rows)["SCALER_RECREATED"]
    assert "It was 2^13 after an update and 2^16 at the next." in found.sentence


def test_a_segment_that_ends_closes_what_its_scalers_were() -> None:
    scaler = Scaler(scale=2.0**10)
    rows = [msgspec.structs.replace(row, recreated=True) for row in scaler.run(10)]
    scaler.resume()
    found = found_of(rows + scaler.run(10))["SCALER_RECREATED"]
    assert (found.first_step, found.last_step) == (0, 9)


def settled() -> tuple[Scaler, list[StepRow]]:
    scaler = Scaler()
    return scaler, scaler.run(300, lambda _, scale: scale > 2.0**12)


def test_a_training_that_is_resumed_with_a_new_scaler_is_told_with_what_it_cost() -> None:
    scaler, rows = settled()
    scaler.resume(65536.0)
    found = found_of(rows + scaler.run(100, lambda _, scale: scale > 2.0**12))
    mismatch = found["RESUME_SCALE_MISMATCH"]
    assert "begins with a scale of 2^16; the one before ended with 2^12 and was never there." in mismatch.sentence
    assert "4 updates had to be skipped until it fit." in mismatch.sentence
    assert (mismatch.severity, mismatch.first_step, mismatch.last_step) == ("warning", 300, 324)


def test_a_scaler_that_was_moved_while_it_was_loaded_is_told() -> None:
    scaler = Scaler(scale=4096.0)
    rows = scaler.run(40)
    scaler.resume(8192.0)
    assert "ended with 2^12" in found_of(rows + scaler.run(5))["RESUME_SCALE_MISMATCH"].sentence


def test_a_training_that_goes_on_where_it_was_or_from_any_checkpoint_of_it_is_silent() -> None:
    scaler = Scaler(scale=2.0**10, interval=50)
    rows = scaler.run(140, lambda step, scale: scale > 2.0**11)
    for scale in (scaler.scale, 2.0**10, 2.0**11):
        scaler.resume(scale)
        assert "RESUME_SCALE_MISMATCH" not in found_of(rows + scaler.run(20), ScalerRules(50))


def test_a_checkpoint_that_was_saved_right_after_a_doubling_is_silent() -> None:
    scaler = Scaler(scale=2.0**10, interval=50)
    rows = scaler.run(50)
    assert scaler.scale == 2.0**11
    scaler.resume()
    assert found_of(rows + scaler.run(20), ScalerRules(50)) == {}


def test_a_start_over_before_anything_was_applied_is_silent() -> None:
    scaler = Scaler()
    rows = scaler.run(3, lambda _, scale: scale > 2.0**10)
    scaler.resume(65536.0)
    assert set(found_of(rows + scaler.run(50, lambda _, scale: scale > 2.0**12))) == {"CALIBRATION"}


def test_a_short_training_that_ended_before_its_scale_fit_is_told_so_and_no_more() -> None:
    rows = Scaler().run(1, lambda *_: True)
    assert set(found_of(rows)) == {"CALIBRATION"}
    found = found_of(rows, setting=Setting(ended=True))
    assert set(found) == {"NO_STEP_APPLIED"}
    assert found["NO_STEP_APPLIED"].severity == "info"
    assert "The only update was not applied, but skipped at a scale of 2^16." in found["NO_STEP_APPLIED"].sentence


def test_a_training_that_ends_after_it_settled_was_applied() -> None:
    rows = Scaler().run(30, lambda _, scale: scale > 2.0**12)
    assert set(found_of(rows, setting=Setting(ended=True))) == {"CALIBRATION"}


def test_a_fixed_scale_at_which_every_update_is_skipped_is_told_at_once() -> None:
    rows = [StepRow(step, 0, 512.0, True, None, "head.weight") for step in range(8)]
    found = found_of(rows, ScalerRules(2000, "LossScaler", 1.0, 1.0))
    assert set(found) == {"NO_STEP_APPLIED"}
    assert found["NO_STEP_APPLIED"].severity == "warning"
    assert found["NO_STEP_APPLIED"].sentence == "None of 8 updates was applied: all were skipped at a scale of 2^9."
    rows += [StepRow(step, 0, 512.0, False, None, None) for step in range(8, 30)]
    assert found_of(rows)["NO_STEP_APPLIED"].last_step == 7


def test_skips_without_a_scale_are_told_where_nothing_was_applied() -> None:
    rows = [StepRow(step, 0, None, True, None, None) for step in range(40)]
    assert found_of(rows)["NO_STEP_APPLIED"].sentence == "None of 40 updates was applied: all were skipped."


def test_an_open_thrashing_is_told_with_the_figures_of_the_last_updates_and_not_of_its_last_skip() -> None:
    rows = Scaler().run(600, lambda step, _: step in {21, 23, 26, 28, 31, 33, 36, 39})
    assert found_of(rows[:40])["SCALE_THRASH"].sentence.startswith("8 of the last 40 updates were thrown away (20.0 %)")
    assert found_of(rows)["SCALE_THRASH"].sentence.startswith("8 of the last 600 updates were thrown away (1.3 %)")
    assert found_of(rows)["SCALE_THRASH"].seen_step == 599


def test_what_is_skipped_below_a_rejected_doubling_is_no_doubling_rejected() -> None:
    """With a growth interval of 2, thirty NaN batches of which the first one meets a doubled scale."""
    scaler = Scaler(interval=2)
    rows = scaler.run(300, lambda step, scale: 40 <= step < 70 or (step < 40 and scale > 2.0**12))
    thrash = found_of(rows[:40], ScalerRules(2))["SCALE_THRASH"]
    assert "GradScaler(init_scale=2.0**12, growth_interval=2000)" in thrash.advice
    for upto in (75, 100, 300):
        found = found_of(rows[:upto], ScalerRules(2))
        assert "SCALE_COLLAPSE" in found
        assert all("init_scale=2.0**-" not in finding.advice for finding in found.values())


def test_a_few_gradients_in_bf16_leave_a_training_in_fp32_what_it_is() -> None:
    """As in one whose autocast was forgotten."""
    mostly_full = Setting(elements={"fp32": 160, "bf16": 1})
    found = found_of(Scaler(interval=1).run(300), ScalerRules(1), setting=mostly_full)
    assert set(found) == {"SCALE_RUNAWAY"}
    assert "All gradients are computed in fp32" not in found["SCALE_RUNAWAY"].sentence
    assert "(99.4 % of what is known)" in found_of(Scaler().run(50), setting=mostly_full)["SCALER_USELESS"].sentence


def test_steps_that_the_loop_leaves_out_are_no_skips_of_the_scaler() -> None:
    """accelerate#641: unscaled and updated at each micro-batch, stepped at every fourth; nothing overflows."""
    rows = [StepRow(step, 0, 2.0**10, False, step, None, left_out=step % 4 != 3) for step in range(400)]
    assert found_of(rows) == {}
    # Nor do they lower the scale: that is what the five skips have done.
    scaler = Scaler()
    rows = scaler.run(1500, lambda step, _: step in {49, 350, 651, 932, 1243})
    rows = [msgspec.structs.replace(row, left_out=not row.skipped and row.step % 16 == 0) for row in rows]
    assert "SCALE_THRASH" not in found_of(rows)
    assert found_of(rows).get("SCALE_DRIFT_DOWN") == found_of(scaled_alike(rows)).get("SCALE_DRIFT_DOWN")


def scaled_alike(rows: list[StepRow]) -> list[StepRow]:
    """The same of a loop that leaves no step out."""
    return [msgspec.structs.replace(row, left_out=False) for row in rows]


def test_a_loop_that_never_steps_an_optimizer_is_told_so_and_not_to_lower_the_scale() -> None:
    rows = [StepRow(step, 0, 65536.0, False, step, None, left_out=True) for step in range(24)]
    found = found_of(rows)
    assert set(found) == {"NO_STEP_APPLIED"}
    assert found["NO_STEP_APPLIED"].sentence.endswith(
        "In all of them the scaler found nothing, but an optimizer that it had unscaled was never stepped."
    )
    assert found["NO_STEP_APPLIED"].advice.startswith("See why scaler.step() is not called")
    assert found["NO_STEP_APPLIED"].evidence["left_out"] == 24


@pytest.mark.parametrize(
    ("setting", "cause"),
    [
        (Setting(elements={"fp32": 100}, zero=True), "All gradients of the last sample are zero."),
        (FULL, "All gradients are computed in fp32"),
        (HALF, "Either the gradients are as good as zero"),
    ],
)
def test_a_scale_that_doubles_for_ever_is_told_with_the_cause_that_shows(setting: Setting, cause: str) -> None:
    rows = Scaler(interval=1).run(300)
    found = found_of(rows, ScalerRules(1), setting=setting)
    assert set(found) == {"SCALE_RUNAWAY"}
    assert (
        f"The scale was doubled 111 times, to 2^127, and nothing overflowed. {cause}" in found["SCALE_RUNAWAY"].sentence
    )
    assert (found["SCALE_RUNAWAY"].first_step, found["SCALE_RUNAWAY"].last_step) == (44, None)


def test_a_high_scale_that_overflows_now_and_then_does_not_run_away() -> None:
    rows = Scaler(scale=2.0**50, interval=5).run(400, lambda _, scale: scale > 2.0**62)
    assert "SCALE_RUNAWAY" not in found_of(rows, ScalerRules(5))
    assert "SCALE_RUNAWAY" not in found_of(Scaler(scale=2.0**16, interval=10).run(400), ScalerRules(10))


def test_a_scale_that_finds_its_ceiling_after_all_does_not_run_away_any_more() -> None:
    rows = Scaler(interval=1).run(80, lambda step, _: step == 60)
    assert found_of(rows, ScalerRules(1), setting=HALF)["SCALE_RUNAWAY"].last_step == 59


def test_a_scaler_under_bf16_is_told_as_useless_and_its_high_scale_is_no_other_matter() -> None:
    found = found_of(Scaler(interval=1).run(300), ScalerRules(1), setting=BRAIN)
    assert set(found) == {"SCALER_USELESS"}
    assert found["SCALER_USELESS"].severity == "info"
    assert "Gradients are computed in bf16 (90.0 % of what is known)" in found["SCALER_USELESS"].sentence


def test_a_scaler_in_fp32_is_useless_too() -> None:
    assert set(found_of(Scaler().run(50), setting=FULL)) == {"SCALER_USELESS"}


@pytest.mark.parametrize(
    "setting",
    [
        HALF,
        Setting(elements={"fp32": 1000}, autocast=("fp16",)),
        Setting(elements={"fp32": 10, "": 1000}),
        Setting(elements={"fp16": 1, "bf16": 1000}),
        Setting(elements={"e4m3fn": 1, "bf16": 1000}),
        Setting(),
    ],
)
def test_a_scaler_is_not_called_useless_where_anything_may_need_it(setting: Setting) -> None:
    assert found_of(Scaler().run(50), setting=setting) == {}


def test_a_scaler_that_is_off_or_fixed_or_new_is_not_called_useless() -> None:
    rows = [StepRow(step, 0, None, False, None, None) for step in range(50)]
    assert found_of(rows, setting=BRAIN) == {}
    rows = [StepRow(step, 0, 1.0, False, None, None) for step in range(50)]
    assert found_of(rows, ScalerRules(2000, "ConstantGradScaler", 1.0, 1.0), setting=BRAIN) == {}
    assert found_of(rows, ScalerRules.of(None), setting=BRAIN) == {}
    assert found_of(Scaler().run(10), setting=BRAIN) == {}
