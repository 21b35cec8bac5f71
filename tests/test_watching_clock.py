"""The time of updates where the clock of a trainer is set otherwise: forward a year, back a day."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import msgspec
import numpy as np
import pytest
from scalescope_server.rules.stretch import stretch_of
from scalescope_server.rules.ticks import Tick
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.judging import Position
from scalescope_server.watching.clock import MOST_SHIFTS, Clock
from scalescope_server.watching.keeper import Keeper

from tests.batches import batch
from tests.watched import RUN, Training, add_rule, look, moves
from tests.watched import Clock as Now

DAY, YEAR = 86_400.0, 365 * 86_400.0

pytestmark = pytest.mark.both_engines


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with closing(open_store(database, clock=Now())) as opened:
        yield opened


def times(clock: Clock, told: Sequence[float], *, segment: int = 0, first: int = 0) -> list[float]:
    updates = stretch_of([Tick(segment, first + place, at, {}) for place, at in enumerate(told)])
    found: list[float] = clock.forward(updates).at.tolist()
    return found


def tell_at(training: Training, times: Sequence[float], scale: float) -> None:
    """Updates that the trainer says were at these times."""
    count = len(times)
    steps = training.say.steps(training.step, count, scale=[scale] * count, skipped=[0.0] * count)
    steps = msgspec.structs.replace(steps, at=np.array(times, "<f8").tobytes())
    training.store.writer.append(batch(training.hello, steps)).result()
    training.step += count


def test_times_go_on_where_a_clock_is_set_back_or_far_ahead() -> None:
    clock = Clock()
    assert times(clock, [10.0, 11.0, 9.5, 12.0]) == [10.0, 11.0, 9.5 + 1.5, 12.0 + 1.5]
    assert times(clock, [13.0, 13.0 + YEAR, 14.0 + YEAR, 15.0], first=4) == [14.5, 14.5, 15.5, 15.5]
    assert [position for position, _ in clock.shifts] == [(0, 2), (0, 5), (0, 7)]
    # Another start may be as much later as it is, and a pause of hours is one.
    assert times(clock, [15.0 + YEAR, 15.0 + YEAR + 7200.0], segment=1, first=8) == [15.5 + YEAR, 15.5 + YEAR + 7200.0]


def test_a_clock_that_is_put_right_a_little_is_followed_and_no_more_is_remembered_than_is_bounded() -> None:
    clock = Clock()
    assert times(clock, [10.0, 9.9, 10.1]) == [10.0, 9.9, 10.1]
    told = [at for place in range(MOST_SHIFTS) for at in (20.0 + place, 10.0 + place)]
    again = times(clock, told, first=3)
    assert (len(clock.shifts), again == sorted(again)) == (MOST_SHIFTS, True)


def test_the_past_is_seen_at_the_times_at_which_it_was_judged() -> None:
    clock, told = Clock(), [0.0, 1.0, 2.0, 2.0 + YEAR, 3.0 + YEAR, 4.0, 5.0]
    judged = times(clock, told)
    updates = stretch_of([Tick(0, place, at, {}) for place, at in enumerate(told)])
    assert Clock(clock.shifts).past(updates).at.tolist() == judged
    assert Clock(clock.shifts).past(updates.part(4, 7)).at.tolist() == judged[4:]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("jump", [-DAY, YEAR])
def test_a_clock_that_jumps_neither_freezes_nor_empties_windows_nor_lets_anything_last(
    store: Store, jump: float, restarts: bool
) -> None:
    """Twelve updates a second apart, after the sixth of which the clock is set otherwise."""
    add_rule(store, "when scale < 1 for 4 s", "lasting")
    add_rule(store, "when count(scale < 1, 10 s) >= 6", "windowed")
    training, keeper = Training(store), Keeper(store.reader, Now())
    for step in range(12):
        at = float(step) + (jump if step > 5 else 0.0)
        tell_at(training, [at], 2.0 if step < 4 else 0.5)
        keeper = Keeper(store.reader, Now()) if restarts else keeper
        look(store, keeper)
    # No time passed between the fifth and the sixth.
    assert moves(store, "lasting") == [("pending", 4), ("firing", 9)]
    assert moves(store, "windowed") == [("firing", 9)]


def test_how_far_a_window_of_time_reaches_back_is_told_by_the_time_that_passed(store: Store) -> None:
    training = Training(store)
    told = [0.0, 1.0, 2.0, 2.0 + YEAR, 3.0 + YEAR, 4.0, 5.0]
    tell_at(training, told, 1.0)
    look_back = store.reader.look_back
    reached = [look_back(RUN, Position(0, 6), 0, seconds) for seconds in (0.5, 1.5, 2.5, 3.5)]
    assert reached == [(0, 5), (0, 3), (0, 1), (0, 0)]
