"""A SQLite file: durable, private, safe from those who only read, and honest when it is locked or full."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from scalescope_server.store import sqlite
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.errors import Unavailable
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from tests.batches import Dictation, batch, hello

DEADLINE_S = 20.0


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database)
    yield opened
    opened.close()


def attempted(store: Store) -> dict[str, int]:
    return {summary.id: summary.attempted for summary in store.reader.runs()[0]}


def pragmas(engine: Engine, *names: str) -> list[object]:
    with engine.connect() as connection:
        return [connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in names]


def test_commits_are_on_the_disk_and_readers_never_wait_for_them(store: Store) -> None:
    full = 2
    for engine in (store._writing, store._reading):
        assert pragmas(engine, "journal_mode", "synchronous", "foreign_keys", "busy_timeout") == ["wal", full, 1, 5000]


def test_pages_that_change_with_every_commit_go_into_the_file_together(store: Store, database: str) -> None:
    before = Path(database).stat().st_size
    for _ in range(6):
        with store._writing.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS much (body BLOB)")
            connection.exec_driver_sql("INSERT INTO much VALUES (zeroblob(1000000))")
    assert Path(database).stat().st_size == before
    assert Path(f"{database}-wal").stat().st_size > 6_000_000


def test_what_one_batch_changes_is_held_until_its_commit(store: Store, database: str) -> None:
    log = Path(f"{database}-wal")
    with store._writing.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE much (body BLOB)")
        before = log.stat().st_size
        for _ in range(6):
            connection.exec_driver_sql("INSERT INTO much VALUES (zeroblob(1000000))")
        assert log.stat().st_size == before


def test_a_reader_cannot_write(store: Store) -> None:
    with store._reading.connect() as connection, pytest.raises(OperationalError, match="readonly"):
        connection.exec_driver_sql("DELETE FROM run")


def test_the_file_is_for_its_owner_alone(store: Store, database: str) -> None:
    store.writer.append(batch(hello(), Dictation().steps(0, 3))).result(DEADLINE_S)
    for suffix in ("", "-wal", "-shm"):
        assert stat.S_IMODE(Path(database + suffix).stat().st_mode) == 0o600


def test_a_place_where_no_file_can_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="could not be made"):
        open_store(str(tmp_path / "file" / "scalescope.db"))


def test_who_only_reads_opens_a_database_that_another_process_is_writing(store: Store, database: str) -> None:
    store.writer.append(batch(hello(), Dictation().steps(0, 3))).result(DEADLINE_S)
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with closing(open_store(database)) as beside:
            assert attempted(beside) == {"run": 3}


def test_a_locked_database_acknowledges_nothing_and_loses_nothing(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_MS", 20)
    store = open_store(database)
    given = batch(hello(), Dictation().steps(0, 3))
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked"):
            store.writer.append(given).result(DEADLINE_S)
        assert attempted(store) == {}
    assert store.writer.append(given).result(DEADLINE_S).stored == 1
    store.close()


def test_a_full_disk_acknowledges_nothing_and_loses_nothing(store: Store) -> None:
    def limit(pages: int) -> None:
        with store._writing.begin() as connection:
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    store.writer.append(batch(hello(), Dictation().steps(0, 1))).result(DEADLINE_S)
    large = batch(hello(), Dictation(1).steps(1, 20_000, loss=[1.0] * 20_000))
    limit(1)
    with pytest.raises(Unavailable, match="full"):
        store.writer.append(large).result(DEADLINE_S)
    assert attempted(store) == {"run": 1}
    limit(2**30)
    assert store.writer.append(large).result(DEADLINE_S).stored == 1
    assert attempted(store) == {"run": 20_001}


def test_the_database_is_made_with_the_folders_above_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "below" / "scalescope.db"
    open_store(f"sqlite:///{path}").close()
    assert path.exists()


def test_two_may_open_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    new = str(tmp_path / "new.db")
    with closing(open_store(new)) as first, closing(open_store(new)) as second:
        first.writer.append(batch(hello(), Dictation().steps(0, 1))).result(DEADLINE_S)
        assert attempted(second) == {"run": 1}
