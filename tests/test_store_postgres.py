"""A Postgres database: durable, shared by several servers, limited in time, and plain about what is wrong with it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from scalescope_server.store import holding
from scalescope_server.store import postgres as backend
from scalescope_server.store.engine import Store, migrate_store, open_store
from scalescope_server.store.errors import SchemaError, Unavailable
from scalescope_server.store.transaction import Transaction
from sqlalchemy import Engine, text
from sqlalchemy.exc import InternalError

from tests.batches import Dictation, batch, hello
from tests.small_link import until

if TYPE_CHECKING:
    from tests.postgres import Cluster

DEADLINE_S = 20.0


@pytest.fixture
def url(postgres: Cluster) -> str:
    return postgres.new(postgres.template)


@pytest.fixture
def stores(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Store, Store]]:
    """Two servers' stores over one database."""
    # One waits for the other, and sends nobody away as it would after half a second.
    monkeypatch.setattr(holding, "HELD_WITHIN", "20s")
    with closing(open_store(url)) as first, closing(open_store(url)) as second:
        yield first, second


def settings(engine: Engine, *names: str) -> list[str]:
    with engine.connect() as connection:
        return [str(connection.execute(text(f"SHOW {name}")).scalar_one()) for name in names]


def attempted(store: Store) -> dict[str, int]:
    return {summary.id: summary.attempted for summary in store.reader.runs()[0]}


def test_nothing_waits_for_ever_and_what_is_acknowledged_is_on_the_disk(stores: tuple[Store, Store]) -> None:
    store, _ = stores
    limits = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
    assert settings(store._writing, *limits) == ["5s", "30s", "15s"]
    assert settings(store._reading, *limits) == ["5s", "30s", "1min"]
    # The cluster of the tests has it off.
    assert settings(store._writing, "synchronous_commit", "transaction_isolation") == ["on", "read committed"]


def test_a_reader_sees_one_state_and_cannot_write(stores: tuple[Store, Store]) -> None:
    store, _ = stores
    assert settings(store._reading, "transaction_isolation", "transaction_read_only") == ["repeatable read", "on"]
    with store._reading.connect() as connection, pytest.raises(InternalError, match="read-only transaction"):
        connection.execute(text("DELETE FROM run"))


def test_two_servers_that_are_told_of_the_same_updates_store_them_once(stores: tuple[Store, Store]) -> None:
    """A trainer that lost its connection sends again, to another server, what the first has yet to commit."""
    say = Dictation()
    records = [say.steps(8 * i, 8, loss=[1.0] * 8) for i in range(60)]
    batches = [batch(hello(), *records[first : first + 3]) for first in range(60 - 2)]
    futures = [store.writer.append(each) for each in batches for store in stores]
    receipts = [future.result(DEADLINE_S) for future in futures]
    assert sum(receipt.stored for receipt in receipts) == 60
    store = stores[0]
    assert (attempted(store), store.reader.run("run").ledger[0].received) == ({"run": 480}, 60)
    _, found = store.reader.series("run", ["loss"], points=1)
    assert (found["loss"].n.tolist(), found["loss"].sum.tolist()) == ([480], [480.0])


def test_ranks_on_different_servers_fold_into_the_same_levels(stores: tuple[Store, Store]) -> None:
    told = [Dictation(), Dictation()]
    futures = [
        stores[rank].writer.append(batch(hello(rank=rank, world_size=2), told[rank].steps(20 * i, 20)))
        for i in range(20)
        for rank in (0, 1)
    ]
    for future in futures:
        future.result(DEADLINE_S)
    for store in stores:
        detail = store.reader.run("run")
        assert [(state.rank, state.attempted) for state in detail.rank_states] == [(0, 400), (1, 400)]
        assert store.reader.series("run", ["skipped"], points=1)[1]["skipped"].n.tolist() == [400]


def test_a_deadlock_of_two_servers_is_run_again(stores: tuple[Store, Store]) -> None:
    for run in ("one", "two"):
        stores[0].writer.append(batch(hello(run), Dictation().steps(0, 1))).result(DEADLINE_S)
    both_hold_one = threading.Barrier(2)
    tries: list[str] = []

    def crossing(first: str, second: str) -> Callable[[Transaction], None]:
        def work(transaction: Transaction) -> None:
            tries.append(first)
            transaction.hold([first])
            if len(tries) <= 2:
                both_hold_one.wait(DEADLINE_S)
            transaction.hold([second])

        return work

    works = [crossing("one", "two"), crossing("two", "one")]
    for future in [store.writer._submit(work) for store, work in zip(stores, works, strict=True)]:
        future.result(DEADLINE_S)
    assert len(tries) >= 3


def test_a_database_that_was_migrated_under_a_server_is_not_written_by_it_any_more(url: str) -> None:
    with closing(open_store(url)) as store:
        store.writer.append(batch(hello(), Dictation().steps(0, 1))).result(DEADLINE_S)
        again = batch(hello(), Dictation(1).steps(1, 1))
        revision = set_revision(store, "m9999")
        for _ in range(2):
            with pytest.raises(Unavailable, match=f"brought to revision m9999 and this server is of {revision}"):
                store.writer.append(again).result(DEADLINE_S)
        assert not store.is_ready()
        assert attempted(store) == {"run": 1}
        set_revision(store, revision)
        assert store.writer.append(again).result(DEADLINE_S).stored == 1


def set_revision(store: Store, revision: str) -> str:
    """What it was before."""
    with store._writing.begin() as connection:
        before = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
        connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
    return str(before)


def test_nothing_is_written_during_a_migration_which_waits_for_what_is_being_written(url: str) -> None:
    with closing(open_store(url)) as store, ThreadPoolExecutor(1) as pool:
        writing, go_on = threading.Event(), threading.Event()

        def write(_: Transaction) -> None:
            writing.set()
            assert go_on.wait(DEADLINE_S)

        written = store.writer._submit(write)
        assert writing.wait(DEADLINE_S)
        migrating = pool.submit(migrate_store, url)
        with store._reading.connect() as connection:
            waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
            until(lambda: connection.execute(waiting).scalar_one() == 1)
        assert not migrating.done()
        go_on.set()
        written.result(DEADLINE_S)
        assert "is up to date" in migrating.result(DEADLINE_S)
        with store._writing.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": backend.MIGRATING})
            with pytest.raises(Unavailable, match="is being migrated"):
                store.writer.append(batch(hello(), Dictation().steps(0, 1))).result(DEADLINE_S)
        assert store.writer.append(batch(hello(), Dictation().steps(0, 1))).result(DEADLINE_S).stored == 1


def test_a_server_that_stopped_in_the_middle_lets_go_of_the_runs_it_holds(stores: tuple[Store, Store]) -> None:
    store, stopped = stores
    store.writer.append(batch(hello(), Dictation().steps(0, 1))).result(DEADLINE_S)
    connection = stopped._writing.connect()
    connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = '100ms'"))
    Transaction(connection).hold(["run"])
    assert store.writer.append(batch(hello(), Dictation(1).steps(1, 1))).result(DEADLINE_S).stored == 1
    connection.invalidate()
    connection.close()


@pytest.mark.both_engines
def test_whoever_reads_while_a_store_is_closed_reads_to_the_end_and_leaves_no_connection(database: str) -> None:
    store = open_store(database)
    with store._reading.connect() as connection:
        held = connection.connection.dbapi_connection
        assert held is not None
        store.close()
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    # What is closed says so, each engine in its own words.
    with pytest.raises(Exception, match="closed"):
        held.cursor()


def test_an_empty_database_is_refused_until_it_is_migrated(postgres: Cluster) -> None:
    url = postgres.new()
    with pytest.raises(SchemaError, match=r"got an empty one: run scalescope migrate --database postgresql://"):
        open_store(url)
    migrate_store(url)
    with closing(open_store(url)) as store:
        assert store.is_ready()


def test_of_several_that_migrate_at_once_one_does(postgres: Cluster) -> None:
    url = postgres.new()
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(migrate_store, url) for _ in range(3)]:
            done.result(DEADLINE_S)
    open_store(url).close()


def test_what_is_wrong_with_a_database_is_one_sentence_without_the_password(postgres: Cluster) -> None:
    url = postgres.url("nowhere").replace("postgres@", "postgres:secret@")
    with pytest.raises(Unavailable) as caught:
        open_store(url)
    folder = url.partition("?host=")[2].replace("/", "%2F")
    shown = f"postgresql://postgres@/nowhere?host={folder}"
    assert str(caught.value) == f'the database {shown} could not be opened: database "nowhere" does not exist'
    with pytest.raises(Unavailable, match=r"could not be opened: Connection refused$"):
        open_store("postgresql://127.0.0.1:1/none")
    with pytest.raises(Unavailable, match=r'role "stranger" does not exist$'):
        open_store(postgres.url("postgres").replace("postgres@", "stranger@"))


def test_without_its_driver_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    told = r"expected psycopg for the database postgresql://host/name: run pip install 'scalescope\[postgres\]'$"
    with pytest.raises(SchemaError, match=told):
        open_store("postgresql://host/name")


def test_a_wrong_password_is_told(postgres: Cluster) -> None:
    postgres.run("CREATE ROLE guarded LOGIN PASSWORD 'right'")
    with postgres.asking_for_passwords():
        with pytest.raises(Unavailable, match=r'password authentication failed for user "guarded"$'):
            open_store(postgres.url("postgres").replace("postgres@", "guarded:wrong@"))
        with pytest.raises(Unavailable, match=r"fe_sendauth: no password supplied$"):
            open_store(postgres.url("postgres").replace("postgres@", "guarded@"))


def test_a_database_of_another_program_is_left_alone(postgres: Cluster) -> None:
    url = postgres.new()
    postgres.run("CREATE TABLE theirs (x integer)", database=url.partition("?")[0].rpartition("/")[2])
    for opened in (open_store, migrate_store):
        with pytest.raises(SchemaError, match="got one with the table theirs"):
            opened(url)


def test_a_user_who_may_make_no_tables_is_told(postgres: Cluster) -> None:
    postgres.run("CREATE ROLE guest LOGIN")
    with pytest.raises(SchemaError, match="cannot be used: permission denied for schema public"):
        migrate_store(postgres.new().replace("postgres@", "guest@"))


def test_a_database_in_another_encoding_is_refused(postgres: Cluster) -> None:
    postgres.run("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(SchemaError, match="expected a database in the encoding UTF8, got LATIN1"):
        migrate_store(postgres.url("latin"))
