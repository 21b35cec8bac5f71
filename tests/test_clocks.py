"""Clocks that jump, the trainer's and the server's: nothing is lost, order goes by the step, states recover."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from scalescope.wire import Heartbeat
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.records import RunId, RunState

from tests.batches import Dictation, batch, hello

pytestmark = pytest.mark.both_engines

DAY_S = 86_400.0


@dataclass
class Clock:
    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(database: str, clock: Clock) -> Iterator[Store]:
    opened = open_store(database, clock=clock)
    yield opened
    opened.close()


def beat(store: Store, clock: Clock, *, at: float = 1.0, progress_at: float = 1.0) -> None:
    told = Heartbeat(at=at, step=0, progress_at=progress_at, pending=0, dropped=0)
    store.writer.heartbeat(hello(world_size=1), told, clock.now).result()


def states(store: Store) -> tuple[RunState, str]:
    detail = store.reader.run(RunId("run"))
    return detail.summary.state, detail.rank_states[0].state


@pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
def test_the_servers_clock_jumps_and_the_states_are_right_after_the_next_sign_of_life(
    store: Store, clock: Clock, jump_s: float
) -> None:
    store.writer.append(batch(hello(world_size=1), Dictation().steps(0, 1), at=clock.now)).result()
    clock.now += jump_s
    beat(store, clock)
    assert states(store) == ("running", "running")
    clock.now += 61
    assert states(store) == ("silent", "silent")


def test_the_trainers_clock_jumps_and_updates_stay_in_the_order_of_their_steps(store: Store, clock: Clock) -> None:
    say = Dictation()
    for first in range(0, 30, 10):
        record = say.steps(first, 10, loss=[float(first + n) for n in range(10)])
        # Each is a day before the one that came before it.
        at = clock.now - DAY_S * np.arange(first, first + 10)
        record = msgspec.structs.replace(record, at=at.astype("<f8").tobytes())
        store.writer.append(batch(hello(world_size=1), record, at=clock.now)).result()
    found = store.reader.series("run", ["loss"])[1]["loss"]
    assert (found.step.tolist(), found.last.tolist()) == (list(range(30)), [float(n) for n in range(30)])
    assert store.reader.series("run", ["loss"], points=1)[1]["loss"].last.tolist() == [29.0]


@pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
def test_the_trainers_clock_jumps_and_it_does_not_stay_stalled(store: Store, clock: Clock, jump_s: float) -> None:
    store.writer.append(batch(hello(world_size=1), Dictation().steps(0, 1), at=clock.now)).result()
    # The update closed before the jump; the next one after it.
    beat(store, clock, at=2 * DAY_S + jump_s, progress_at=2 * DAY_S)
    clock.now += 5
    beat(store, clock, at=2 * DAY_S + jump_s + 5, progress_at=2 * DAY_S + jump_s + 4)
    assert states(store) == ("running", "running")


def test_a_trainer_that_comes_back_after_it_was_silent_goes_on_where_it_was(store: Store, clock: Clock) -> None:
    say = Dictation()
    store.writer.append(batch(hello(world_size=1), say.steps(0, 3), at=clock.now)).result()
    clock.now += 3600
    assert states(store) == ("silent", "silent")
    lost = say.steps(3, 3)
    store.writer.append(batch(hello(world_size=1), say.steps(6, 3), at=clock.now)).result()
    assert states(store) == ("running", "running")
    store.writer.append(batch(hello(world_size=1), lost, say.bye(), at=clock.now)).result()
    assert states(store) == ("finished", "finished")
    found = store.reader.series("run", ["attempted"])[1]["attempted"]
    assert found.step.tolist() == list(range(9))
    assert store.reader.run(RunId("run")).ledger[0].lost == 0
