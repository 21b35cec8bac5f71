"""Opening a database: durable, private, and safe from those who only read."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from scalescope_server.store import transaction
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.errors import BadRecord, Unavailable
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from tests.batches import Dictation, batch, hello


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database)
    yield opened
    opened.close()


def pragmas(engine: Engine, *names: str) -> list[object]:
    with engine.connect() as connection:
        return [connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in names]


def test_commits_are_on_the_disk_and_readers_never_wait_for_them(store: Store) -> None:
    full = 2
    for engine in (store._writing, store._reading):
        assert pragmas(engine, "journal_mode", "synchronous", "foreign_keys", "busy_timeout") == ["wal", full, 1, 5000]


def test_a_reader_cannot_write(store: Store) -> None:
    with store._reading.connect() as connection, pytest.raises(OperationalError, match="readonly"):
        connection.exec_driver_sql("DELETE FROM run")


def test_a_reader_sees_one_moment_while_the_writer_goes_on(store: Store) -> None:
    count = "SELECT count(*) FROM step"
    store.writer.append(batch(hello(), Dictation().steps(0, 1))).result()
    with store._reading.connect() as connection:
        seen = [connection.exec_driver_sql(count).scalar_one()]
        store.writer.append(batch(hello(), Dictation(1).steps(1, 1))).result()
        seen.append(connection.exec_driver_sql(count).scalar_one())
    assert (seen, store.reader.latest("run").attempted) == ([1, 1], 2)


def test_the_file_is_for_its_owner_alone(store: Store, database: str) -> None:
    for suffix in ("", "-wal", "-shm"):
        assert stat.S_IMODE(Path(database + suffix).stat().st_mode) == 0o600


def test_a_place_where_no_file_can_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="could not be made"):
        open_store(str(tmp_path / "file" / "scalescope.db"))


def test_two_processes_may_open_the_same_new_file(database: str) -> None:
    first, second = open_store(database), open_store(database)
    first.writer.append(batch(hello(), Dictation().steps(0, 1))).result()
    second.writer.append(batch(hello(), Dictation(1).steps(1, 1))).result()
    assert first.reader.latest("run").attempted == second.reader.latest("run").attempted == 2
    for opened in (first, second):
        opened.close()


def test_a_loop_that_logs_under_ever_new_names_ends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "MAX_SERIES", 3)
    say = Dictation()
    records = [say.steps(step, 1, **{f"name{step}": [1.0]}) for step in range(3)]
    with pytest.raises(BadRecord, match="expected at most 3 series in a run, got 'name2' as one more") as caught:
        store.writer.append(batch(hello(), *records)).result()
    assert caught.value.sequence == 2
