"""A scaler's settings, and the words in which its user writes them."""

from __future__ import annotations

import math

import pytest
from scalescope_server.findings.scaler import DEFAULT_INTERVAL, ScalerRules

from tests.timelines import Scaler, found_of


def test_the_settings_of_a_greeting_are_taken_as_far_as_they_are_any() -> None:
    told = {"name": "Own", "growth_interval": 100, "growth_factor": 1.5, "backoff_factor": 0.25, "enabled": True}
    assert ScalerRules.of(told) == ScalerRules(100, "Own", 1.5, 0.25)
    odd = {"name": None, "growth_interval": 0, "growth_factor": "inf", "backoff_factor": math.nan}
    assert ScalerRules.of(odd) == ScalerRules(DEFAULT_INTERVAL)
    assert ScalerRules.of(None) == ScalerRules(DEFAULT_INTERVAL, told=False)


@pytest.mark.parametrize(
    ("name", "start", "both"),
    [
        ("GradScaler", "GradScaler(init_scale=2.0**19)", "GradScaler(init_scale=2.0**19, growth_interval=2000)"),
        (
            "DynamicLossScaler",
            '"initial_scale_power": 19 in the "fp16" section of DeepSpeed\'s configuration',
            '"initial_scale_power": 19, "loss_scale_window": 1000 in the "fp16" section of DeepSpeed\'s configuration',
        ),
        ("DynamicGradScaler", "--initial-loss-scale 524288", "--initial-loss-scale 524288 --loss-scale-window 1000"),
        ("Own", "an initial scale of 2^19", "an initial scale of 2^19 and a growth interval of 2,000 updates"),
    ],
)
def test_each_librarys_user_is_told_in_its_words(name: str, start: str, both: str) -> None:
    rules = ScalerRules(20, name)
    assert rules.written(2.0**19) == start
    assert rules.written(2.0**19, rules.usual_interval) == both


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("GradScaler", "Use GradScaler(init_scale=2.0**19, growth_interval=2000): the scale is doubled after every"),
        ("DynamicLossScaler", 'Use "initial_scale_power": 19, "loss_scale_window": 1000 in the "fp16" section of'),
        ("DynamicGradScaler", "Use --initial-loss-scale 524288 --loss-scale-window 1000: the scale is doubled"),
    ],
)
def test_who_thrashes_is_told_in_the_words_of_the_own_library(name: str, advice: str) -> None:
    rows = Scaler(scale=2.0**20, interval=20).run(600, lambda _, scale: scale > 2.0**19)
    assert found_of(rows, ScalerRules(20, name))["SCALE_THRASH"].advice.startswith(advice)


def test_an_interval_of_a_library_that_is_its_own_is_not_said_to_be_too_short() -> None:
    """DeepSpeed doubles after 1000 clean updates, and that is no mistake."""
    rows = Scaler(scale=2.0**20, interval=1000).run(9000, lambda step, scale: scale > 2.0**19 or step % 61 == 7)
    found = found_of(rows, ScalerRules(1000, "DynamicLossScaler"))
    assert all("GradScaler" not in finding.advice for finding in found.values())
