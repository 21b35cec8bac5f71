"""Waits between attempts: longer each time, never in step, bounded, and given up in the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scalescope_server.delivery.backoff import Backoff

LEAST, MOST = 0.0, 0.999999


def test_waits_double_until_the_longest() -> None:
    waits = [Backoff().wait_s(attempt, MOST) for attempt in range(1, 13)]
    assert waits == pytest.approx([2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900], rel=1e-4)


def test_a_receiver_that_is_away_for_an_hour_and_a_half_is_mostly_still_told_and_then_it_ends() -> None:
    backoff = Backoff()
    waits = range(1, backoff.attempts)
    assert sum(backoff.wait_s(attempt, LEAST) for attempt in waits) / 60 == pytest.approx(54, abs=1)
    assert sum(backoff.wait_s(attempt, MOST) for attempt in waits) / 60 == pytest.approx(107, abs=1)
    assert [backoff.is_last(attempt) for attempt in (1, 15, 16, 17)] == [False, False, True, True]


@given(attempt=st.integers(1, 10**9), drawn=st.floats(0, 1, exclude_max=True), asked=st.none() | st.floats(0, 1e9))
def test_every_wait_is_between_half_of_the_first_and_the_longest(
    attempt: int, drawn: float, asked: float | None
) -> None:
    assert 1.0 <= Backoff().wait_s(attempt, drawn, asked) <= 900.0


def test_what_the_receiver_asks_for_is_waited_but_not_less_than_one_would() -> None:
    assert Backoff().wait_s(1, LEAST, asked_s=30.0) == 30.0
    assert Backoff().wait_s(5, LEAST, asked_s=1.0) == 16.0
    assert Backoff().wait_s(1, LEAST, asked_s=86_400.0) == 900.0
