"""A database that others lock for longer than a rule waits for an update: nothing fires falsely, nothing is lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial

import psycopg
import pytest
from scalescope_server.store import postgres, sqlite
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.errors import StoreError

from tests.test_judge_pulses import judge_of, pass_time, take_up
from tests.watched import RUN, Clock, Training, add_rule, moves, outbox

pytestmark = pytest.mark.both_engines

Lock = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(database: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    # Who waits for the lock is soon told that it is not to be had.
    monkeypatch.setattr(sqlite, "BUSY_MS", 50)
    monkeypatch.setitem(postgres.SESSION, "lock_timeout", "50ms")
    with closing(open_store(database, clock=clock)) as opened:
        yield opened


@contextmanager
def locked(database: str) -> Iterator[None]:
    """Another program writes, and does not come to an end. Reading goes on."""
    if not database.startswith("postgresql"):
        with closing(sqlite3.connect(database, isolation_level=None)) as locker:
            locker.execute("BEGIN IMMEDIATE")
            yield
            locker.execute("ROLLBACK")
        return
    with psycopg.connect(database) as locker:
        locker.execute("LOCK TABLE run, step, ledger, alert, judgement IN EXCLUSIVE MODE")
        yield
        locker.rollback()


@pytest.fixture
def lock(database: str) -> Lock:
    return partial(locked, database)


def refused(training: Training, *scales: float, at: float) -> None:
    """What a trainer tells meanwhile comes again later."""
    step, sequence = training.step, training.say.sequence
    with pytest.raises(StoreError):
        training.tell(*scales, at=at)
    training.step, training.say.sequence = step, sequence


def test_what_comes_while_nothing_can_be_stored_is_neither_missed_nor_taken_for_silence(
    store: Store, clock: Clock, lock: Lock
) -> None:
    add_rule(store, "when no update for 10 s", "silent", channels=("ops",))
    add_rule(store, "when scale < 1", channels=("ops",))
    judge, training = judge_of(store, clock), Training(store)
    training.tell(2.0, at=clock())
    take_up(judge)
    with lock():
        for _ in range(12):
            refused(training, 0.5, at=clock())
            clock.seconds += 1
            judge._attempt(judge._pulse)
    # Before anything of it has come.
    pass_time(judge, clock, 5, every_s=1.0)
    assert (moves(store), moves(store, "silent")) == ([], [])
    training.tell(0.5, at=clock())
    take_up(judge)
    pass_time(judge, clock, 5, every_s=1.0)
    assert (moves(store), moves(store, "silent")) == ([("firing", 1)], [])
    # What is silent now is.
    pass_time(judge, clock, 10, every_s=1.0)
    assert [after for after, _ in moves(store, "silent")] == ["firing"]
    assert [line[:2] for line in outbox(store)] == [("fired", 1), ("fired", 1)]


def test_a_judgement_that_could_not_be_stored_is_made_again_and_told_once(
    store: Store, clock: Clock, lock: Lock
) -> None:
    add_rule(store, "when scale < 1 for 2 steps", channels=("ops",))
    judge, training = judge_of(store, clock), Training(store)
    training.tell(2.0, 0.5, at=clock())
    take_up(judge)
    training.tell(0.5, 0.5, at=clock())
    with lock():
        for _ in range(3):
            clock.seconds += 1
            judge._attempt(partial(judge._judge, RUN), RUN)
            judge._attempt(judge._pulse)
    assert [after for after, _ in moves(store)] == ["pending"]
    take_up(judge)
    assert moves(store) == [("pending", 1), ("firing", 2)]
    assert [line[:2] for line in outbox(store)] == [("fired", 1)]
