"""The schema's revisions: they give exactly the tables in the code, and refuse what is not theirs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from scalescope_server.store.engine import open_store
from scalescope_server.store.errors import SchemaError, Unavailable
from scalescope_server.store.tables import metadata
from sqlalchemy import create_engine, inspect

from tests.batches import Dictation, batch, hello

# Each has a run of 20 updates as Dictation tells them, stored by the program of that time (sqlite3's iterdump).
OLDER = ["m0001", "m0002", "m0003"]


def run_sql(database: str, *statements: str) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def stored_at(revision: str, database: str) -> None:
    """Make the database that was stored when ``revision`` was the newest."""
    script = Path(__file__).parent.joinpath("samples", f"{revision}.sql").read_text(encoding="utf-8")
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(script)


@pytest.mark.parametrize("revision", [None, *OLDER])
def test_an_empty_file_and_older_ones_become_the_tables_of_the_code(database: str, revision: str | None) -> None:
    if revision is not None:
        stored_at(revision, database)
    open_store(database).close()
    engine = create_engine(f"sqlite:///{database}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


@pytest.mark.parametrize("revision", [None, *OLDER])
def test_keys_and_rowids_are_those_of_the_code(database: str, tmp_path: Path, revision: str | None) -> None:
    if revision is not None:
        stored_at(revision, database)
    open_store(database).close()
    straight = create_engine(f"sqlite:///{tmp_path / 'straight.db'}")
    metadata.create_all(straight)
    migrated = create_engine(f"sqlite:///{database}")
    for table in metadata.tables:
        for look in ("get_pk_constraint", "get_foreign_keys", "get_unique_constraints", "get_indexes"):
            assert getattr(inspect(migrated), look)(table) == getattr(inspect(straight), look)(table), table
    query = "SELECT name FROM sqlite_schema WHERE sql LIKE '%WITHOUT ROWID%' ORDER BY name"
    with straight.connect() as one, migrated.connect() as other:
        assert one.exec_driver_sql(query).all() == other.exec_driver_sql(query).all()
    straight.dispose()
    migrated.dispose()


def test_opening_again_keeps_what_is_there(database: str) -> None:
    store = open_store(database)
    store.writer.append(batch(hello(), Dictation().steps(0, 3))).result()
    store.close()
    store = open_store(database)
    assert store.is_ready()
    assert store.reader.latest("run").attempted == 3
    store.close()


@pytest.mark.parametrize("revision", OLDER)
def test_an_older_database_keeps_what_it_holds_and_its_runs_go_on(database: str, revision: str) -> None:
    stored_at(revision, database)
    store = open_store(database)
    detail = store.reader.run("run")
    assert (detail.summary.attempted, detail.summary.skipped) == (20, 1)
    assert [(p.name, p.compute_format, p.backward) for p in detail.parameters] == [("w", "fp16", 1), ("b", None, 0)]
    assert store.reader.series("run", ["loss"])[1]["loss"].last.tolist() == [float(step) for step in range(20)]
    say = Dictation(sequence=store.writer.admit(hello(), 1.0).result().ledger.highest + 1)
    tally = say.tally(20, update_squares=[1.0, 1.0], weight_squares=[4.0, 4.0])
    updates = say.steps(20, 10, (10, {"zero_grad": True}), loss=[20.0] * 10, clip_coefficient=[0.5] * 10)
    store.writer.append(batch(hello(), tally, updates)).result()
    assert store.reader.latest("run").attempted == 30
    found = store.reader.series("run", ["update_ratio", "clip_coefficient"])[1]
    assert found["update_ratio"].last.tolist()[-1] == 0.5
    assert found["clip_coefficient"].last.tolist()[-10:] == [0.5] * 10
    assert store.reader.facts("run")[0][-1].first_step == 20
    store.close()


def test_ranks_stored_before_they_were_merged_stay_apart_until_one_of_them_connects_again(database: str) -> None:
    stored_at("m0002", database)
    store = open_store(database)
    detail = store.reader.run("run")
    assert (detail.world_size, detail.ranks) == (1, [0, 1])
    assert [(rank.rank, rank.attempted, rank.skipped) for rank in detail.rank_states] == [(0, 20, 1), (1, 20, 1)]
    assert [(event.step, event.rank) for event in store.reader.events("run", merged=True)[0]] == [(7, 0)]
    before = store.reader.samples("run", points=1)[1]
    assert [bucket.samples.tolist() for bucket in before] == [[2, 2]]
    told = Dictation(sequence=store.writer.admit(hello(rank=1), 1.0).result().ledger.highest + 1)
    store.writer.append(batch(hello(rank=1), told.steps(20, 1))).result()
    assert store.reader.run("run").world_size == 2
    # Of what rank 1 had stored nothing says whether it was the same as rank 0's: that is what the merge begins with.
    merged = store.reader.samples("run", points=1)[1]
    assert [bucket.samples.tolist() for bucket in merged] == [[2, 2]]
    store.close()


def test_a_newer_database_is_refused_in_a_sentence(database: str) -> None:
    open_store(database).close()
    run_sql(database, "UPDATE alembic_version SET version_num = 'm9999'")
    with pytest.raises(SchemaError, match=r"at m9999: it was written by a newer scalescope"):
        open_store(database)


def test_a_database_that_someone_replaced_is_not_ready(database: str) -> None:
    store = open_store(database)
    run_sql(database, "UPDATE alembic_version SET version_num = 'm9999'")
    assert not store.is_ready()
    store.close()


def test_a_database_that_was_damaged_is_told_and_not_called_ready(database: str) -> None:
    store = open_store(database)
    store.close()
    Path(database).write_bytes(b"no database, only text that goes on for a while" * 100)
    with pytest.raises(Unavailable, match="does not answer"):
        store.is_ready()
    with pytest.raises(Unavailable, match="does not answer"):
        store.reader.runs()
    store.close()


def test_a_database_of_another_program_is_left_alone(database: str) -> None:
    run_sql(database, "CREATE TABLE theirs (x)")
    with pytest.raises(SchemaError, match="got one with the table theirs"):
        open_store(database)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (1,)


@pytest.mark.parametrize("url", ["mysql://localhost/x", "sqlite://", "sqlite:///:memory:", "://"])
def test_a_url_that_is_no_database_of_ours_is_refused(url: str) -> None:
    with pytest.raises(SchemaError, match="expected sqlite:///PATH"):
        open_store(url)


def test_a_file_that_is_no_database_is_refused(database: str) -> None:
    Path(database).write_bytes(b"no database, only text that goes on for a while" * 100)
    with pytest.raises(SchemaError, match="no SQLite database"):
        open_store(database)


def test_a_place_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="could not be opened"):
        open_store(str(tmp_path))


def test_every_revision_is_named_by_its_number_and_stored_before_the_next_one() -> None:
    folder = files("scalescope_server.migrations").joinpath("versions")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.startswith("m"))
    assert [name[:5] for name in names] == [f"m{number:04}" for number in range(1, len(names) + 1)]
    assert [f"m{number:04}" for number in range(1, len(names))] == OLDER
