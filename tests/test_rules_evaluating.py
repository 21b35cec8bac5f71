"""What rules say of an update is what all of its past says, however that came and whatever was interrupted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from scalescope_server.rules import dependence
from scalescope_server.rules.dependence import Lookback, lookback
from scalescope_server.rules.evaluating import ANSWERS, Evaluator
from scalescope_server.rules.expression import MOST_UPDATES, Condition
from scalescope_server.rules.signals import windowed
from scalescope_server.rules.stretch import stretch_of
from scalescope_server.rules.ticks import Tick
from scalescope_server.rules.verdict import Answer, Verdict

from tests.naive_rules import Naive
from tests.random_rules import any_condition, of_windows, ticks

mosts = st.sampled_from([MOST_UPDATES, 5, 2])


@contextmanager
def holding(most: int) -> Iterator[None]:
    """A window holds that many updates at most."""
    with patch.object(windowed, "MOST_UPDATES", most), patch.object(dependence, "MOST_UPDATES", most):
        yield


def answers(condition: Condition, updates: list[Tick]) -> list[Answer]:
    evaluator = Evaluator([condition])
    found = []
    for tick in updates:
        evaluator.tick(tick)
        found.append(evaluator.verdict(0).answer)
    return found


def expected(condition: Condition, updates: list[Tick], most: int) -> list[Answer]:
    course = Naive(updates, most).course(condition)
    named = {None: Answer.NO_DATA, True: Answer.HOLDS, False: Answer.DOES_NOT}
    return [named[None if said.value is None else bool(said.value)] for said in course]


def same(one: Verdict, other: Verdict) -> bool:
    if one.value is not None and other.value is not None and math.isnan(one.value):
        return math.isnan(other.value) and one.culprit == other.culprit and one.answer is other.answer
    return one == other


@settings(max_examples=60, deadline=None)
@given(any_condition, ticks(), mosts)
def test_update_by_update_it_says_what_all_of_the_past_says(
    condition: Condition, updates: list[Tick], most: int
) -> None:
    with holding(most):
        assert answers(condition, updates) == expected(condition, updates, most)


@settings(max_examples=60, deadline=None)
@given(any_condition, ticks(), st.lists(st.integers(1, 15)), st.booleans(), mosts)
def test_by_columns_it_says_the_same_however_they_are_cut(
    condition: Condition, updates: list[Tick], lengths: list[int], one_between: bool, most: int
) -> None:
    with holding(most):
        slow, fast = Evaluator([condition]), Evaluator([condition])
    start = 0
    for length in [*lengths, len(updates)]:
        part = updates[start : start + length]
        start += length
        fast.stretch(stretch_of(part))
        for index, tick in enumerate(part):
            slow.tick(tick)
            verdict = slow.verdict(0)
            assert ANSWERS[fast.answers(0)[index]] is verdict.answer
            assert same(fast.verdict(0, index), verdict)
        if one_between and start < len(updates):
            slow.tick(updates[start])
            fast.tick(updates[start])
            assert same(fast.verdict(0), slow.verdict(0))
            start += 1


@settings(max_examples=60, deadline=None)
@given(any_condition, ticks(), mosts)
def test_restored_at_any_update_it_says_what_it_would_have_said(
    condition: Condition, updates: list[Tick], most: int
) -> None:
    with holding(most):
        assert_restorable(condition, updates)


@settings(max_examples=60, deadline=None)
@given(of_windows, ticks(), mosts)
def test_windows_are_restored_from_no_more_than_they_reach_back_to(
    condition: Condition, updates: list[Tick], most: int
) -> None:
    with holding(most):
        assert_restorable(condition, updates)


def assert_restorable(condition: Condition, updates: list[Tick]) -> None:
    whole, said = Evaluator([condition]), []
    for tick in updates:
        whole.tick(tick)
        said.append(whole.verdict(0))
    for stopped in range(len(updates)):
        restored = Evaluator([condition])
        for tick in updates[first_needed(updates, stopped, lookback(condition)) : stopped + 1]:
            restored.tick(tick)
        assert same(restored.verdict(0), said[stopped])
        for tick, expected_verdict in zip(updates[stopped + 1 : stopped + 4], said[stopped + 1 :], strict=False):
            restored.tick(tick)
            assert same(restored.verdict(0), expected_verdict)


def first_needed(updates: list[Tick], last: int, back: Lookback) -> int:
    """The index of the first update of what ``back`` asks for."""
    for _ in range(back.times):
        by_time = next(index for index, tick in enumerate(updates) if tick.at >= updates[last].at - back.seconds)
        last = max(0, min(last - back.updates, max(by_time, last - back.most)))
    return last


@settings(max_examples=20, deadline=None)
@given(st.lists(any_condition, min_size=2, max_size=5), ticks(most=15))
def test_many_rules_at_once_say_what_each_says_alone(conditions: list[Condition], updates: list[Tick]) -> None:
    together = Evaluator(conditions)
    alone = [Evaluator([condition]) for condition in conditions]
    for tick in updates:
        together.tick(tick)
        for index, evaluator in enumerate(alone):
            evaluator.tick(tick)
            assert same(together.verdict(index), evaluator.verdict(0))
