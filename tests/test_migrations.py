"""The schema's revisions: they give exactly the tables in the code, and refuse what is not theirs."""

from __future__ import annotations

import json
import sqlite3
import stat
from collections.abc import Sequence
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from scalescope_server.store import schema
from scalescope_server.store.engine import backend_of, migrate_store, open_store
from scalescope_server.store.errors import SchemaError, Unavailable
from scalescope_server.store.tables import metadata
from sqlalchemy import JSON, Boolean, Connection, Engine, MetaData, StaticPool, Table, create_engine, insert, inspect

from tests.batches import Dictation, batch, hello

if TYPE_CHECKING:
    from tests.postgres import Cluster

# Each has a run of 20 updates as Dictation tells them, stored by the program of that time (sqlite3's iterdump).
OLDER = ["m0001", "m0002", "m0003", "m0004", "m0005", "m0006", "m0007", "m0008"]


@pytest.fixture
def blank(database: str, request: pytest.FixtureRequest) -> str:
    """A database without a table; of SQLite a file that is not there yet."""
    if not database.startswith("postgresql:"):
        return f"{database}.blank"
    cluster: Cluster = request.getfixturevalue("postgres")
    return cluster.new()


def run_sql(database: str, *statements: str) -> None:
    engine = backend_of(database).writing()
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def stored_at(revision: str, database: str) -> None:
    """Make the database that was stored when ``revision`` was the newest."""
    script = Path(__file__).parent.joinpath("samples", f"{revision}.sql").read_text(encoding="utf-8")
    if not database.startswith("postgresql:"):
        with closing(sqlite3.connect(database)) as connection:
            connection.executescript(script)
        return
    with closing(sqlite3.connect(":memory:")) as sample:
        sample.executescript(script)
        older = create_engine("sqlite://", creator=lambda: sample, poolclass=StaticPool)
        engine = backend_of(database).writing()
        with older.connect() as source, engine.begin() as target:
            schema.upgrade(target, revision)
            copy_rows(source, target)
        engine.dispose()


def copy_rows(source: Connection, target: Connection) -> None:
    """Give the tables of ``target`` the rows that those of ``source`` hold, and let their keys go on from there."""
    stored = MetaData()
    stored.reflect(target, only=lambda name, _: name != "alembic_version")
    for table in stored.sorted_tables:
        columns = ", ".join(f'"{column.name}"' for column in table.columns)
        rows = source.exec_driver_sql(f'SELECT {columns} FROM "{table.name}"').all()
        if rows:
            target.execute(insert(table), [_row(table, row) for row in rows])
        if "key" in table.columns:
            target.exec_driver_sql(
                f"SELECT setval('{table.name}_key_seq', (SELECT max(key) FROM \"{table.name}\") + 1)"
            )


def _row(table: Table, row: Sequence[Any]) -> dict[str, Any]:
    """A row of SQLite as Postgres takes it: JSON that is no text, truth that is no number."""
    found = {}
    for column, value in zip(table.columns, row, strict=True):
        if value is not None and isinstance(column.type, JSON):
            value = json.loads(value)
        elif value is not None and isinstance(column.type, Boolean):
            value = bool(value)
        found[column.name] = value
    return found


@pytest.mark.both_engines
@pytest.mark.parametrize("revision", [None, *OLDER])
def test_an_empty_database_and_older_ones_become_the_tables_of_the_code(
    blank: str, request: pytest.FixtureRequest, revision: str | None
) -> None:
    if revision is not None:
        stored_at(revision, blank)
    migrate_store(blank)
    straight, migrated = made_straight(blank, request), backend_of(blank).reading()
    with migrated.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    found, wanted = inspect(migrated), inspect(straight)
    for look in ("pk_constraint", "foreign_keys", "unique_constraints", "indexes", "table_options"):
        of_migrated, of_straight = (getattr(each, f"get_multi_{look}")() for each in (found, wanted))
        for table, expected in of_straight.items():
            assert in_order(of_migrated[table]) == in_order(expected), table
    straight.dispose()
    migrated.dispose()


def made_straight(database: str, request: pytest.FixtureRequest) -> Engine:
    """A database of the same engine whose tables were made as they are in the code."""
    if database.startswith("postgresql:"):
        cluster: Cluster = request.getfixturevalue("postgres")
        engine = backend_of(cluster.new()).writing()
    else:
        engine = backend_of(f"{database}.straight").writing()
    with engine.begin() as connection:
        metadata.create_all(connection)
    return engine


def in_order(found: Any) -> Any:
    return sorted(found, key=repr) if isinstance(found, list) else found


@pytest.mark.both_engines
def test_opening_again_keeps_what_is_there(database: str) -> None:
    store = open_store(database)
    store.writer.append(batch(hello(), Dictation().steps(0, 3))).result()
    store.close()
    store = open_store(database)
    assert store.is_ready()
    assert store.reader.latest("run").attempted == 3
    store.close()


def test_a_sqlite_file_is_copied_before_it_is_upgraded(blank: str) -> None:
    stored_at("m0002", blank)
    with closing(sqlite3.connect(blank)) as connection:
        before = list(connection.iterdump())
    told = migrate_store(blank)
    kept = Path(f"{blank}.m0002.backup")
    assert told == f"{blank} is up to date. As it was before it is kept in {kept}."
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    with closing(sqlite3.connect(kept)) as connection:
        assert list(connection.iterdump()) == before
    assert migrate_store(blank) == f"{blank} is up to date."


def test_without_room_for_the_copy_nothing_is_upgraded(blank: str) -> None:
    stored_at("m0002", blank)
    Path(f"{blank}.m0002.partial").mkdir()
    with pytest.raises(Unavailable, match=r"could not be copied to .*\.m0002\.backup before its upgrade"):
        open_store(blank)
    with closing(sqlite3.connect(blank)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("m0002",)


def test_postgres_is_not_upgraded_by_being_opened(postgres: Cluster) -> None:
    url = postgres.new()
    stored_at("m0002", url)
    with pytest.raises(SchemaError, match=r"at revision m\d+, got one at m0002: run scalescope migrate --database"):
        open_store(url)
    migrate_store(url)
    open_store(url).close()


@pytest.mark.both_engines
@pytest.mark.parametrize("revision", OLDER)
def test_an_older_database_keeps_what_it_holds_and_its_runs_go_on(blank: str, revision: str) -> None:
    stored_at(revision, blank)
    migrate_store(blank)
    store = open_store(blank)
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


@pytest.mark.both_engines
def test_ranks_stored_before_they_were_merged_stay_apart_until_one_of_them_connects_again(blank: str) -> None:
    stored_at("m0002", blank)
    migrate_store(blank)
    store = open_store(blank)
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


@pytest.mark.both_engines
def test_deliveries_stored_by_the_name_of_their_rule_are_those_of_the_alert_that_had_it_then(blank: str) -> None:
    # The rule was deleted, and made again under its name.
    stored_at("m0008", blank)
    migrate_store(blank)
    with closing(open_store(blank)) as store:
        told = {
            (found.alert.rule, found.alert.state): [(line.happened, line.firing) for line in reversed(found.deliveries)]
            for found in store.reader.alerts()[0]
        }
        assert told == {(None, "quiet"): [("fired", 1), ("resolved", 1)], (1, "firing"): [("fired", 2)]}


@pytest.mark.both_engines
def test_a_newer_database_is_refused_in_a_sentence(database: str) -> None:
    open_store(database).close()
    run_sql(database, "UPDATE alembic_version SET version_num = 'm9999'")
    for refused in (open_store, migrate_store):
        with pytest.raises(SchemaError, match=r"at m9999: it was written by a newer scalescope"):
            refused(database)


@pytest.mark.both_engines
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


def test_a_database_of_another_program_is_left_alone(blank: str) -> None:
    run_sql(blank, "CREATE TABLE theirs (x)")
    with pytest.raises(SchemaError, match="got one with the table theirs"):
        open_store(blank)
    with closing(sqlite3.connect(blank)) as connection:
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
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="could not be made: File exists"):
        open_store(str(tmp_path / "file" / "a.db"))


def test_every_revision_is_named_by_its_number_and_stored_before_the_next_one() -> None:
    folder = files("scalescope_server.migrations").joinpath("versions")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.startswith("m"))
    assert [name[:5] for name in names] == [f"m{number:04}" for number in range(1, len(names) + 1)]
    assert [f"m{number:04}" for number in range(1, len(names))] == OLDER
