"""Many rows at once: what is bound, what a conflict makes of a row, and what is left alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from scalescope_server.store import tables
from scalescope_server.store.bulk import insert_rows, merge_rows
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.upsert import Excluded
from sqlalchemy import ColumnElement, Connection, Table, insert, select
from sqlalchemy.exc import IntegrityError

from tests.batches import Dictation, batch, hello

pytestmark = pytest.mark.both_engines


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database)
    opened.writer.append(batch(hello(), Dictation().layout(("w", "fp16")))).result()
    yield opened
    opened.close()


@pytest.fixture
def connection(store: Store) -> Iterator[Connection]:
    with store._writing.begin() as opened:
        opened.execute(insert(tables.series).values(key=7, run=1, name="mine"))
        yield opened


def scalars(**changed: Any) -> dict[str, Any]:
    columns = {
        "series": np.full(3, 7),
        "rank": [0, 0, 0],
        "step": np.arange(3),
        "segment": np.ones(3, np.int64),
        "value": np.array([1.5, np.nan, -np.inf]),
        "flag": np.array([0, 1, 3]),
    }
    return columns | changed


def added(table: Table, new: Excluded) -> Mapping[str, ColumnElement[Any]]:
    return {"value": table.c.value + new.value}


def stored(connection: Connection) -> list[tuple[Any, ...]]:
    row = tables.scalar.c
    return [tuple(found) for found in connection.execute(select(row.step, row.value, row.flag).order_by(row.step))]


def test_what_is_not_finite_is_null(connection: Connection) -> None:
    insert_rows(connection, tables.scalar, scalars())
    assert stored(connection) == [(0, 1.5, 0), (1, None, 1), (2, None, 3)]


def test_a_column_of_whole_numbers_may_have_gaps(connection: Connection) -> None:
    columns: dict[str, Any] = {"run": [1, 1], "rank": [0, 0], "step": [0, 1], "segment": [1, 1], "at": [0.0, 0.5]}
    told = {"skipped": np.zeros(2), "growth_tracker": np.array([2.0**40, np.nan]), "nonfinite": [0, 0]}
    insert_rows(connection, tables.step, columns | told)
    row = tables.step.c
    found = connection.execute(select(row.growth_tracker, row.at, row.loss).order_by(row.step)).all()
    assert [tuple(each) for each in found] == [(2**40, 0.0, None), (None, 0.5, None)]
    assert isinstance(found[0][0], int)


def test_numbers_may_all_be_arrays_with_gaps_anywhere(connection: Connection) -> None:
    whole = {name: np.arange(3) for name in ("run", "rank", "step", "segment", "nonfinite")}
    told = {"skipped": np.zeros(3), "growth_tracker": np.array([np.nan, 2.0**40, 7.0])}
    losses = {"at": np.ones(3), "loss": np.array([0.5, np.inf, np.nan]), "step_ms": np.array([np.nan, 1.0, 2.0])}
    insert_rows(connection, tables.step, whole | told | losses)
    row = tables.step.c
    found = connection.execute(select(row.run, row.growth_tracker, row.loss, row.step_ms).order_by(row.step)).all()
    assert [tuple(each) for each in found] == [(0, None, 0.5, None), (1, 2**40, None, 1.0), (2, 7, None, 2.0)]


def test_json_truth_and_bytes_come_back_as_they_went(connection: Connection) -> None:
    fixed: dict[str, Any] = {"run": [1, 1], "rank": [0, 0], "segment": [1, 1], "at": [0.0, 1.0]}
    told = {
        "kind": ["skip"] * 2,
        "step": [3, 4],
        "data": [{"a": [1, None, "\u2028"]}, {}],
        "culprit": ["w", None],
        "of_run": [True, False],
    }
    insert_rows(connection, tables.event, fixed | told)
    row = tables.event.c
    found = connection.execute(select(row.data, row.culprit, row.of_run).order_by(row.step))
    assert [tuple(each) for each in found] == [({"a": [1, None, "\u2028"]}, "w", True), ({}, None, False)]
    shared: dict[str, Any] = {"run": [1], "kind": ["grad"], "step": [0], "segment": [1], "expected": [2]}
    insert_rows(connection, tables.gathered, shared | {"ranks": [b"\0\xff"], "sums": [b""]})
    assert connection.execute(select(tables.gathered.c.ranks, tables.gathered.c.sums)).one() == (b"\0\xff", b"")


def test_a_row_that_is_there_is_not_inserted_again(connection: Connection) -> None:
    insert_rows(connection, tables.scalar, scalars())
    with pytest.raises(IntegrityError), connection.begin_nested():
        insert_rows(connection, tables.scalar, scalars())


def test_a_row_that_is_there_is_replaced_or_becomes_what_the_merge_says(connection: Connection) -> None:
    insert_rows(connection, tables.scalar, scalars())
    merge_rows(connection, tables.scalar, scalars(step=np.array([0, 1, 9]), value=[2.0, 2.0, 2.0]))
    assert stored(connection) == [(0, 2.0, 0), (1, 2.0, 1), (2, None, 3), (9, 2.0, 3)]
    merge_rows(connection, tables.scalar, scalars(step=[0, 2, 10], value=np.ones(3)), added)
    assert stored(connection) == [(0, 3.0, 0), (1, 2.0, 1), (2, None, 3), (9, 2.0, 3), (10, 1.0, 3)]


def test_no_rows_are_no_statement(connection: Connection) -> None:
    for columns in ({}, {name: values[:0] for name, values in scalars().items()}):
        insert_rows(connection, tables.scalar, columns)
        merge_rows(connection, tables.scalar, columns)
    assert stored(connection) == []


def test_columns_that_differ_in_length_are_a_mistake(connection: Connection) -> None:
    with pytest.raises(ValueError, match="unpack"):
        insert_rows(connection, tables.scalar, scalars(step=[1]))
