"""In which unit the value of an alert is written."""

from __future__ import annotations

import pytest
from scalescope_server.rules.evaluating import Evaluator
from scalescope_server.rules.parsing import parse
from scalescope_server.rules.seen import unit_seen
from scalescope_server.rules.ticks import Tick


@pytest.mark.parametrize(
    ("when", "unit"),
    [
        ("when max by layer(zero_share) > 20%", "%"),
        ("when 500 ms < step_ms for 5 min", "ms"),
        ("when scale < 1", ""),
        ("when grad_norm > 4 * median(grad_norm, 500 steps)", ""),
        ("when no update for 10 min and run is running", "s"),
        # What is told is the count of the updates, not the share that it counts.
        ("when skipped in 8 of 10 updates", ""),
        ("when count(rate(skipped, 100 steps) > 5%, 50 steps) > 3", ""),
        ("when rate(skipped, 100 steps) > 5% or scale < 1", ""),
        ("when rate(skipped, 100 steps) > 5% or rate(skipped, 1000 steps) > 1%", "%"),
        ("when finding(SCALE_THRASH)", ""),
        ("when not of any language", ""),
    ],
)
def test_a_value_is_written_in_the_unit_in_which_its_rule_compares_it(when: str, unit: str) -> None:
    assert unit_seen(when) == unit


@pytest.mark.parametrize(
    ("when", "value", "unit"),
    [
        ("when finding(SCALE_THRASH) and rate(skipped, 2 steps) > 5% and scale > 1", 0.5, "%"),
        ("when scale > 1 and rate(skipped, 2 steps) > 5%", 2.0, ""),
        ("when not rate(skipped, 2 steps) > 60%", 0.5, "%"),
    ],
)
def test_it_is_the_unit_of_the_value_that_is_told(when: str, value: float, unit: str) -> None:
    evaluator = Evaluator([parse(when).condition])
    for step in range(2):
        evaluator.tick(Tick(0, step, 0.0, {"skipped": float(step), "scale": 2.0}, findings=frozenset({"SCALE_THRASH"})))
    assert (evaluator.verdict(0).value, unit_seen(when)) == (value, unit)
