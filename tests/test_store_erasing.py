"""Deleting a run: gone at once for everyone, its rows behind that piece by piece."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scalescope_server.store import erasing, tables
from scalescope_server.store.engine import Store, backend_of, open_store
from scalescope_server.store.errors import Gone, NotFound
from scalescope_server.store.records import RunId
from sqlalchemy import func, select

from tests.batches import Dictation, batch, hello
from tests.exported import fill, rows

pytestmark = pytest.mark.both_engines


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    store = open_store(database)
    fill(store)
    fill(store, "other")
    yield store
    store.close()


def left(database: str) -> dict[str, int]:
    """How many rows each table has that has any."""
    engine = backend_of(database).reading()
    with engine.connect() as connection:
        counts = {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in tables.metadata.sorted_tables
        }
    engine.dispose()
    return {name: count for name, count in counts.items() if count}


def test_a_deleted_run_is_nowhere_to_be_found_before_anything_of_it_is_erased(store: Store) -> None:
    store.writer.delete_run(RunId("run")).result()
    assert [run.id for run in store.reader.runs()[0]] == ["other"]
    assert store.reader.states() == {"finished": 1}
    assert store.reader.unjudged() == ["other"]
    assert set(store.reader.marks([RunId("run"), RunId("other")])) == {"other"}
    assert store.reader.prunable(1e12)[0].run == "other"
    for ask in (store.reader.run, store.reader.latest, store.reader.series_names, store.reader.findings):
        with pytest.raises(NotFound):
            ask("run")
    with pytest.raises(NotFound):
        store.writer.delete_run(RunId("run")).result()


def test_what_its_trainers_still_send_is_refused_and_a_new_start_is_a_new_run(store: Store) -> None:
    store.writer.delete_run(RunId("run")).result()
    says = Dictation(sequence=100)
    with pytest.raises(Gone):
        store.writer.append(batch(hello(), says.steps(20, 1))).result()
    store.writer.append(batch(hello(segment="third"), says.steps(0, 1))).result()
    assert store.reader.latest("run").attempted == 1
    while store.writer.erase().result():
        pass
    assert store.reader.latest("run").attempted == 1
    with pytest.raises(Gone):
        store.writer.append(batch(hello(), says.steps(20, 1))).result()


def test_pieces_of_any_size_leave_nothing_but_the_ids_of_its_segments(
    store: Store, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "PIECE_ROWS", 5)
    monkeypatch.setattr(erasing, "PIECE_TABLES", 1)
    monkeypatch.setattr(erasing, "OF_SERIES", 2)
    expected = rows(store.reader, "updates", run="other")
    store.writer.delete_run(RunId("run")).result()
    pieces = 0
    while store.writer.erase().result():
        pieces += 1
    assert pieces > 10
    assert rows(store.reader, "updates", run="other") == expected
    store.writer.delete_run(RunId("other")).result()
    while store.writer.erase().result():
        pass
    assert left(database) == {"deleted": 4}
