"""How often gradients are sampled, by a clock and costs that the tests set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from scalescope.taps.budget import MOST, SHARE, Budget

US = 1_000
MS = 1_000_000


@dataclass
class Course:
    """A training whose updates take ``step_ns`` of their own, watched by a hook of known cost."""

    budget: Budget
    step_ns: int = 100 * MS
    ordinary_ns: int = 50 * US
    sampled_ns: int = 5 * MS
    step: int = 0
    now_ns: int = 0
    total_ns: int = 0
    next_turn: int = 0

    def run(self, updates: int, *, pause: Callable[[int], int] = lambda _: 0) -> list[int]:
        """The updates that were sampled; ``pause`` adds to what the hook takes of one."""
        found = []
        for _ in range(updates):
            turn = self.step >= self.next_turn
            spent = (self.sampled_ns if turn else self.ordinary_ns) + pause(self.step)
            self._pass(spent)
            if turn:
                found.append(self.step)
                self.budget.sampled(self.step, self.now_ns, self.total_ns, spent)
                self.next_turn = self.step + self.budget.interval
            self.step += 1
        return found

    def look(self, updates: int, spent_ns: int) -> None:
        """Updates that are measured because of trouble."""
        for _ in range(updates):
            self._pass(spent_ns)
            self.budget.looked(spent_ns)
            self.step += 1

    def share(self, updates: int) -> float:
        """What the hook takes from here on, as a share of the training's own time."""
        before = self.total_ns
        self.run(updates)
        return (self.total_ns - before) / (updates * self.step_ns)

    def _pass(self, spent_ns: int) -> None:
        self.total_ns += spent_ns
        self.now_ns += self.step_ns + spent_ns


@pytest.mark.parametrize(
    ("sampled_ns", "interval"),
    # Of 100 ms the budget is 1 ms, 50 us of them go to ordinary updates: 950 us are left for samples.
    [(1 * MS, 10), (9 * MS, 10), (10 * MS, 20), (19 * MS, 20), (20 * MS, 40), (80 * MS, 160), (10_000 * MS, 640)],
)
def test_the_interval_is_the_shortest_that_the_budget_allows(sampled_ns: int, interval: int) -> None:
    course = Course(Budget(10), sampled_ns=sampled_ns)
    course.run(5_000)
    assert course.budget.interval == interval


@pytest.mark.parametrize("sampled_ns", [1 * MS, 10 * MS, 30 * MS, 200 * MS])
def test_what_the_hook_takes_in_all_stays_within_the_budget(sampled_ns: int) -> None:
    course = Course(Budget(10), sampled_ns=sampled_ns)
    course.run(5_000)
    assert course.share(64 * course.budget.interval) <= SHARE


def test_the_interval_doubles_at_most_once_a_sample_so_that_a_short_training_is_seen() -> None:
    course = Course(Budget(10), step_ns=1 * MS)
    assert course.run(1_000) == [0, 10, 20, 30, 50, 90, 170, 330, 650]


def test_where_ordinary_updates_take_the_whole_budget_samples_take_a_tenth_more() -> None:
    course = Course(Budget(10), ordinary_ns=2 * MS)
    course.run(10_000)
    assert course.budget.interval == 40
    assert course.share(64 * course.budget.interval) <= 0.02 + SHARE / 10


def test_an_interval_has_a_bound_whatever_a_sample_takes() -> None:
    course = Course(Budget(10), sampled_ns=100_000 * MS)
    course.run(10_000)
    assert course.budget.interval == 10 * MOST


def test_a_cold_first_sample_does_not_count() -> None:
    course = Course(Budget(10))
    course.run(1_000, pause=lambda step: 5_000 * MS if step == 0 else 0)
    assert course.budget.interval == 10


def test_one_slow_sample_changes_nothing() -> None:
    course = Course(Budget(10))
    sampled = course.run(1_000, pause=lambda step: 5_000 * MS if step in (10, 200, 600) else 0)
    assert sampled == list(range(0, 1_000, 10))


def test_a_pause_of_the_training_does_not_make_samples_look_cheap() -> None:
    course = Course(Budget(10), sampled_ns=30 * MS)
    course.run(1_000)
    course.now_ns += 3_600 * 1_000 * MS
    course.run(1_000)
    assert course.budget.interval == 40


def test_an_interval_that_just_fits_does_not_flutter() -> None:
    course = Course(Budget(10), sampled_ns=int(19.05 * MS))
    told = set()
    for number in range(40):
        # Just above and just below what 20 updates can bear.
        course.sampled_ns = int((19.3 if number % 4 < 2 else 18.7) * MS)
        course.run(200)
        told.add(course.budget.interval)
    assert told == {40}


def test_samples_that_become_cheap_are_taken_more_often_again() -> None:
    course = Course(Budget(10), sampled_ns=200 * MS)
    course.run(5_000)
    assert course.budget.interval == 320
    course.sampled_ns = 2 * MS
    course.run(5_000)
    assert course.budget.interval == 10


def test_looks_after_trouble_are_neither_ordinary_nor_samples() -> None:
    course = Course(Budget(10))
    for _ in range(60):
        course.run(12)
        course.look(8, spent_ns=50 * MS)
    assert course.budget.interval == 10


def test_several_optimizers_with_turns_of_their_own_pay_for_all_of_them() -> None:
    budget = Budget(10)
    now = total = turn = 0
    for step in range(2_000):
        # The second one's turn comes an update after the first one's.
        sampled = step in (turn, turn + 1)
        spent = 6 * MS if sampled else 50 * US
        total += spent
        now += 100 * MS + spent
        if sampled:
            budget.sampled(step, now, total, spent)
        if step == turn + 1:
            turn += budget.interval
    # One of them alone would fit into 10.
    assert budget.interval == 20


def test_a_fixed_interval_stays_whatever_it_costs() -> None:
    course = Course(Budget(3, fixed=True), step_ns=1 * US)
    assert course.run(30) == list(range(0, 30, 3))


def test_every_update_sampled_by_default_becomes_rarer_too() -> None:
    course = Course(Budget(1), sampled_ns=5 * MS)
    course.run(500)
    assert course.budget.interval == 8
