"""Whose turn it is with the judge, as timelines without a clock."""

from __future__ import annotations

from scalescope_server.store.leases import TERM_S, Claim, Lease, claimed
from scalescope_server.store.records import RunId
from scalescope_server.turns import (
    FIRST_RETRY_S,
    LAST_RETRY_S,
    LOOK_S,
    MARGIN_S,
    Failures,
    Tenure,
    Turns,
    look_again_at,
)

A, B, C, D = (RunId(name) for name in "abcd")


def test_runs_with_news_have_their_turns_in_order_and_once() -> None:
    turns = Turns()
    for run in (A, B, A):
        turns.at_once(run)
    assert [turns.take(0.0) for _ in range(3)] == [A, B, None]


def test_a_run_that_was_put_off_waits_for_its_time_whatever_news_it_has() -> None:
    turns = Turns()
    turns.later(A, 5.0)
    turns.at_once(A)
    turns.later(A, 7.0)
    assert (turns.take(4.9), turns.wait_s(4.0, 30.0), turns.wait_s(4.0, 0.5)) == (None, 1.0, 0.5)
    assert (turns.take(5.0), turns.take(9.0)) == (A, None)


def test_a_run_that_has_news_is_not_put_off() -> None:
    turns = Turns()
    turns.at_once(A)
    turns.later(A, 5.0)
    assert (turns.wait_s(0.0, 30.0), turns.take(0.0), turns.take(9.0)) == (0.0, A, None)


def test_a_run_that_was_put_off_has_its_turn_however_much_news_others_have() -> None:
    turns = Turns()
    turns.later(A, 5.0)
    taken = []
    for second in range(8):
        turns.at_once(B)
        taken.append(turns.take(float(second)))
    assert taken.count(A) == 1


def test_all_whose_turn_it_is_are_taken_at_once_but_those_that_are_not_chosen() -> None:
    turns = Turns()
    for run in (A, B, C):
        turns.at_once(run)
    turns.later(D, 5.0)
    assert turns.take_all(5.0, lambda run: run != B, 2) == [A, C]
    assert [turns.take(5.0) for _ in range(3)] == [B, D, None]


def test_a_run_that_cannot_be_judged_is_told_of_once_and_left_alone_longer_each_time() -> None:
    failures = Failures()
    assert [failures.note(A, "broken") for _ in range(3)] == [(1.0, True), (2.0, False), (4.0, False)]
    assert failures.note(A, "broken otherwise") == (8.0, True)
    assert failures.note(B, "broken") == (FIRST_RETRY_S, True)
    assert max(failures.note(A, "broken")[0] for _ in range(20)) == LAST_RETRY_S
    assert (failures.count, failures.runs()) == (25, 2)
    failures.clear(A)
    assert (failures.count, failures.runs(), A in failures, B in failures) == (25, 1, False, True)
    assert failures.note(A, "broken") == (FIRST_RETRY_S, True)


def test_a_lease_goes_to_another_only_when_its_time_is_over_and_then_under_a_later_fence() -> None:
    held = claimed(Lease("", 0, 0.0), "one", 100.0)
    assert held == Lease("one", 1, 100.0 + TERM_S)
    assert claimed(held, "two", 100.0 + TERM_S - 0.001) == held
    assert claimed(held, "two", 100.0 + TERM_S) == Lease("two", 2, 100.0 + 2 * TERM_S)


def test_a_lease_that_reaches_further_than_a_term_is_of_a_clock_that_was_set_back_and_binds_nobody() -> None:
    """After a failover, say, to a database whose clock is behind."""
    held = Lease("one", 1, 1000.0 + TERM_S)
    assert claimed(held, "two", 1000.0) == held
    assert claimed(held, "two", 100.0) == Lease("two", 2, 100.0 + TERM_S)


def test_a_holder_keeps_its_fence_however_late_it_comes() -> None:
    held = Lease("one", 4, 100.0)
    assert claimed(held, "one", 99.0) == Lease("one", 4, 99.0 + TERM_S)
    assert claimed(held, "one", 500.0) == Lease("one", 4, 500.0 + TERM_S)


def test_a_lease_is_trusted_for_less_than_its_time() -> None:
    tenure = Tenure()
    tenure.note(A, Claim(mine=True, fence=3, left_s=TERM_S), 10.0)
    ends = 10.0 + TERM_S - MARGIN_S
    assert (tenure.fence(A, 10.0), tenure.fence(A, ends), tenure.fence(B, 10.0)) == (3, None, None)
    assert (tenure.count(ends - 0.1), tenure.count(ends)) == (1, 0)


def test_a_lease_that_another_has_is_held_no_more() -> None:
    tenure = Tenure()
    tenure.note(A, Claim(mine=True, fence=3, left_s=TERM_S), 10.0)
    tenure.note(A, Claim(mine=False, fence=4, left_s=TERM_S), 10.1)
    assert tenure.fence(A, 10.2) is None


def test_a_run_of_another_server_is_looked_at_every_second_and_when_its_lease_ends() -> None:
    assert look_again_at(Claim(mine=False, fence=1, left_s=TERM_S), 10.0) == 10.0 + LOOK_S
    assert look_again_at(Claim(mine=False, fence=1, left_s=0.25), 10.0) == 10.25
