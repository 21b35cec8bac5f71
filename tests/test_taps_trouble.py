"""When every update is looked at, by verdicts and numbers that a device may hold back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from scalescope.numerics.measure import Measurement, measure
from scalescope.taps.trouble import DENSE, REST, Trouble
from scalescope.updates import Measured, OptimizerVerdict


def dense_updates(troubled: Iterator[bool] | list[bool]) -> list[int]:
    """Which updates are dense where those marked went wrong."""
    trouble = Trouble()
    found = []
    for step, bad in enumerate(troubled):
        if trouble.dense:
            found.append(step)
        trouble.ask_of([OptimizerVerdict("SGD", [float(bad)])], ())
        trouble.heed(step + 1)
    return found


def test_a_skip_makes_the_next_updates_dense_and_then_no_more() -> None:
    assert dense_updates([step == 3 for step in range(40)]) == list(range(4, 4 + DENSE))


def test_in_a_storm_of_skips_few_updates_are_dense() -> None:
    assert dense_updates([True] * (4 * REST)) == [REST * time + 1 + n for time in range(4) for n in range(DENSE)]


def test_nothing_is_dense_without_trouble() -> None:
    assert dense_updates([False] * 40) == []


def test_a_verdict_that_comes_late_is_heeded_when_it_comes() -> None:
    trouble, answers = Trouble(), [None, None, True]
    trouble.ask(lambda: answers.pop(0))
    for step in range(1, 5):
        trouble.heed(step)
        assert trouble.dense is (step >= 3)


def test_where_samples_of_ranks_add_up_only_what_all_are_told_of_makes_updates_dense() -> None:
    trouble = Trouble()
    trouble.together = True
    trouble.ask(lambda: True)
    trouble.ask_of([], [Measured((0,), measure([torch.tensor([torch.nan])]))])
    trouble.heed(1)
    assert not trouble.dense
    trouble.ask_of([OptimizerVerdict("SGD", [1.0])], ())
    trouble.heed(2)
    assert trouble.dense


def test_questions_that_nobody_answers_are_bounded() -> None:
    trouble = Trouble()
    for _ in range(1000):
        trouble.ask(lambda: None)
    trouble.ask(lambda: True)
    trouble.heed(1)
    assert len(trouble.awaited) < 100


def test_a_gradient_that_is_not_finite_is_trouble_without_a_scaler() -> None:
    trouble = Trouble()
    trouble.ask_of((), [Measured((0,), measure([torch.tensor([1.0, 2.0])]))])
    trouble.heed(1)
    assert not trouble.dense
    trouble.ask_of((), [Measured((0,), measure([torch.tensor([1.0, torch.nan])]))])
    trouble.heed(2)
    assert trouble.dense


def test_a_device_is_not_waited_for_that_does_not_say_when_a_copy_is_there() -> None:
    trouble = Trouble()
    trouble.ask_of((), [Measured((0,), Measurement(lambda: pytest.fail("it was waited for"), on_host=False))])
    trouble.heed(1)
    assert not trouble.dense
