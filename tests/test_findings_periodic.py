"""Skips that keep their distance, and those that only seem to."""

from __future__ import annotations

import random

import pytest
from scalescope_server.findings.scaler import ScalerRules

from tests.timelines import Scaler, codes_over_time, found_of


def test_a_term_that_overflows_whenever_it_runs_is_told_with_its_place() -> None:
    rows = Scaler(interval=5).run(400, lambda step, _: step % 16 == 3)
    found = found_of(rows, ScalerRules(5))
    periodic = found["SKIP_PERIODIC"]
    assert periodic.severity == "warning"
    assert "An update is skipped every 16 updates, 25 times in a row since update 3" in periodic.sentence
    assert (periodic.evidence["period"], periodic.evidence["residue"]) == (16, 3)
    assert periodic.last_step is None
    assert "SCALE_THRASH" not in found


def test_a_batch_that_comes_around_in_every_epoch_is_told_from_the_sixth_on() -> None:
    rows = Scaler(interval=200).run(9000, lambda step, _: step % 1000 == 500)
    seen = list(codes_over_time(rows, 1000, ScalerRules(200)))
    assert "SKIP_PERIODIC" not in seen[4]
    assert "SKIP_PERIODIC" in seen[5]


def test_a_term_that_no_scale_cures_is_told_though_the_scale_never_settles() -> None:
    rows = Scaler().run(200, lambda step, _: step % 10 == 0)
    assert found_of(rows)["SKIP_PERIODIC"].first_step == 0


def test_a_term_whose_scale_is_found_in_the_end_was_settling() -> None:
    rows = Scaler().run(400, lambda step, scale: step % 10 == 0 and scale > 2.0**7)
    assert set(found_of(rows)) == {"CALIBRATION"}


def test_skips_in_a_row_count_once() -> None:
    rows = Scaler(interval=4).run(400, lambda step, _: step % 16 in (3, 4))
    assert found_of(rows, ScalerRules(4))["SKIP_PERIODIC"].evidence["period"] == 16


@pytest.mark.parametrize("interval", [1, 5, 20, 100])
@pytest.mark.parametrize("late", [0, 1, 3])
def test_the_scalers_own_rhythm_is_not_told(interval: int, late: int) -> None:
    """A doubled scale that is rejected, at once or some updates later, is so once an interval."""
    scaler = Scaler(scale=2.0**20, interval=interval)
    rows = scaler.run(
        30 * (interval + 1), lambda _, scale: scale > 2.0**19 and scaler.tracker >= min(late, interval - 1)
    )
    for codes in codes_over_time(rows, 10, ScalerRules(interval)):
        assert "SKIP_PERIODIC" not in codes


def test_a_rhythm_is_over_when_a_beat_is_missed() -> None:
    scaler = Scaler(interval=5)
    rows = scaler.run(200, lambda step, _: step % 16 == 3) + scaler.run(40)
    found = found_of(rows, ScalerRules(5))["SKIP_PERIODIC"]
    assert found.last_step == 195


def test_a_resumed_training_begins_its_own_rhythm() -> None:
    scaler = Scaler(interval=5)
    rows = scaler.run(200, lambda step, _: step % 16 == 3)
    scaler.resume()
    assert found_of(rows + scaler.run(5), ScalerRules(5))["SKIP_PERIODIC"].last_step == 195


@pytest.mark.parametrize("seed", range(5))
def test_skips_at_random_have_no_rhythm(seed: int) -> None:
    chance = random.Random(seed)
    rows = Scaler(interval=10).run(5000, lambda *_: chance.random() < 0.05)
    for codes in codes_over_time(rows, 50, ScalerRules(10)):
        assert not {"SKIP_PERIODIC", "skip_periodic"} & codes
