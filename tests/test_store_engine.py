"""Opening a database: durable, private, and safe from those who only read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scalescope_server.store import transaction
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.errors import BadRecord

from tests.batches import Dictation, batch, hello

pytestmark = pytest.mark.both_engines


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database)
    yield opened
    opened.close()


def test_a_reader_sees_one_moment_while_the_writer_goes_on(store: Store) -> None:
    count = "SELECT count(*) FROM step"
    store.writer.append(batch(hello(), Dictation().steps(0, 1))).result()
    with store._reading.connect() as connection:
        seen = [connection.exec_driver_sql(count).scalar_one()]
        store.writer.append(batch(hello(), Dictation(1).steps(1, 1))).result()
        seen.append(connection.exec_driver_sql(count).scalar_one())
    assert (seen, store.reader.latest("run").attempted) == ([1, 1], 2)


def test_two_may_have_the_same_database_open(database: str) -> None:
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
