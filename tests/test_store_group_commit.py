"""What is committed together: nobody waits for a run that another server holds but those who write to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from scalescope_server.store import holding
from scalescope_server.store.delivery import Batch
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.entry import enter_batch
from scalescope_server.store.errors import Held
from scalescope_server.store.group_commit import TROUBLE_S, GroupCommit, Job, Work, touch
from scalescope_server.store.transaction import Transaction
from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import OperationalError

from tests.batches import Dictation, batch, hello
from tests.postgres import Cluster
from tests.test_store_writer import Gate

DEADLINE_S = 20.0


@pytest.fixture
def store(postgres: Cluster) -> Iterator[Store]:
    with closing(open_store(postgres.new(postgres.template))) as opened:
        for run in ("held", "free"):
            opened.writer.append(updates(run)).result(DEADLINE_S)
        yield opened


def updates(run: str, number: int = 0) -> Batch:
    return batch(hello(run), Dictation(number).steps(number, 1))


@contextmanager
def frozen(store: Store, run: str) -> Iterator[None]:
    """A server that has stopped in the middle of a transaction on ``run``."""
    with store._writing.begin() as connection:
        Transaction(connection).hold([run])
        yield


def test_who_writes_another_run_does_not_wait_for_one_that_is_held(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "HELD_WITHIN", "20s")
    with frozen(store, "held"):
        gate = Gate(store)
        held = store.writer.append(updates("held", 1))
        others = [store.writer.append(updates(run, 1)) for run in ("free", "new")]
        gate.open()
        assert others[0].result(DEADLINE_S).stored == 1
        assert not held.done()
    assert [future.result(DEADLINE_S).stored for future in (held, others[1])] == [1, 1]


def test_a_run_that_stays_held_fails_alone_and_is_not_waited_for_again_so_soon(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "HELD_WITHIN", "20ms")
    with frozen(store, "held"):
        for number in (1, 2):
            gate = Gate(store)
            held = store.writer.append(updates("held", 1))
            free = store.writer.append(updates("free", number))
            gate.open()
            with pytest.raises(Held, match="another server holds run 'held'"):
                held.result(DEADLINE_S)
            assert free.result(DEADLINE_S).stored == 1
            # The next time it would fail if it were waited for.
            monkeypatch.setattr(holding, "HELD_WITHIN", "1h")
    assert store.writer.append(updates("held", 1)).result(DEADLINE_S).stored == 1
    assert store.writer.trouble() is None


def test_of_several_runs_that_are_waited_for_those_that_come_free_are_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "HELD_WITHIN", "20ms")
    gate = Gate(store)
    with frozen(store, "held"):
        held = store.writer.append(updates("held", 1))
        with frozen(store, "free"):
            free = store.writer.append(updates("free", 1))
            gate.open()
            with pytest.raises(Held):
                free.result(DEADLINE_S)
        with pytest.raises(Held):
            held.result(DEADLINE_S)
        assert store.writer.append(updates("free", 1)).result(DEADLINE_S).stored == 1


def test_a_run_that_another_server_has_entered_and_not_committed_holds_nobody_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "HELD_WITHIN", "20ms")
    with store._writing.begin() as connection:
        enter_batch(Transaction(connection), updates("new"))
        gate = Gate(store)
        new, free = store.writer.append(updates("new")), store.writer.append(updates("free", 1))
        gate.open()
        assert free.result(DEADLINE_S).stored == 1
        with pytest.raises(Held):
            new.result(DEADLINE_S)
    assert store.writer.append(updates("new")).result(DEADLINE_S).duplicates == 1


class Disk:
    """What is written to, and how that fails."""

    def __init__(self) -> None:
        self.now = 0.0
        self.failure: Exception | None = None
        self.commits = GroupCommit(create_engine("sqlite://"), self.check, clock=lambda: self.now)

    def check(self, connection: Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS alembic_version (version_num TEXT)")
        if self.failure:
            raise self.failure

    def write(self, told: str | None = None, work: Work[None] = lambda _: None) -> str | None:
        self.commits.settle([Job(work, None, 0, told)])
        return self.commits.trouble()


def test_a_failure_is_held_against_the_database_until_a_batch_is_stored_or_for_a_minute() -> None:
    disk = Disk()
    assert disk.write("batch") is None
    disk.failure = sqlite_error("database or disk is full", sqlite3.SQLITE_FULL)
    full = "the database does not answer: database or disk is full"
    assert disk.write("batch") == full
    disk.failure = None
    assert [disk.write("heartbeat"), disk.write(work=touch)] == [full, full]
    disk.now = TROUBLE_S
    assert disk.commits.trouble() is None
    disk.now = 1.0
    assert disk.write("batch") is None


def test_a_database_that_came_back_shows_by_the_smallest_write() -> None:
    disk = Disk()
    disk.failure = sqlite_error("attempt to write a readonly database", sqlite3.SQLITE_READONLY)
    assert disk.write(work=touch) == "the database does not answer: attempt to write a readonly database"
    disk.failure = None
    assert disk.write("heartbeat") is not None
    assert disk.write(work=touch) is None


def sqlite_error(told: str, code: int) -> OperationalError:
    error = sqlite3.OperationalError(told)
    error.sqlite_errorcode = code
    return OperationalError("COMMIT", None, error)
