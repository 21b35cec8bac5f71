"""Many rows at once on SQLite: one statement run for tuples, past SQLAlchemy's work on each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Column, Connection, Integer, Table
from sqlalchemy.dialects import sqlite

from scalescope_server.store.upsert import Merge, inserting
from scalescope_server.store.values import bound


def insert(
    connection: Connection,
    table: Table,
    columns: Mapping[str, Sequence[Any] | NDArray[Any]],
    merge: Merge | None,
) -> None:
    """Insert at least one row, or merge it into the one with its primary key."""
    statement, order = _statement(table, tuple(columns), merge)
    plain = [_plain(connection, table.c[name], columns[name]) for name in order]
    connection.exec_driver_sql(statement, list(zip(*plain, strict=True)))


@cache
def _statement(table: Table, names: tuple[str, ...], merge: Merge | None) -> tuple[str, list[str]]:
    """The statement as text, and the columns in the order of its parameters."""
    compiled = inserting("sqlite", table, names, merge).compile(dialect=sqlite.dialect(), column_keys=list(names))
    order = compiled.positiontup
    assert order is not None
    # A value inside ``merge`` would be a parameter too: only columns are.
    assert sorted(order) == sorted(names)
    return str(compiled), order


def _plain(connection: Connection, column: Column[Any], values: Sequence[Any] | NDArray[Any]) -> Sequence[Any]:
    if isinstance(values, np.ndarray):
        return bound(values, whole=isinstance(column.type, Integer))
    process = column.type.dialect_impl(connection.dialect).bind_processor(connection.dialect)
    return values if process is None else [process(value) for value in values]
