"""Many rows at once on SQLite: statements of hundreds of rows each, past SQLAlchemy's work on each row.

The driver lets go of Python's lock at each step of a statement, and a step of a statement for one row is a row. Beside
another thread that is at work it then waits to have the lock back for longer than the row takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Column, Connection, Integer, Table
from sqlalchemy.dialects import sqlite

from scalescope_server.store.upsert import Merge, inserting
from scalescope_server.store.values import bound

# Rows of a statement. Few numbers, since each makes a statement of its own, which is parsed once and kept; what is left
# over goes row by row.
_TOGETHER = (512, 256, 128, 64, 32, 16, 8)


def insert(
    connection: Connection,
    table: Table,
    columns: Mapping[str, Sequence[Any] | NDArray[Any]],
    merge: Merge | None,
) -> None:
    """Insert at least one row, or merge it into the one with its primary key."""
    _, order = _statement(table, tuple(columns), merge)
    rows = list(zip(*(_plain(connection, table.c[name], columns[name]) for name in order), strict=True))
    first = 0
    for together in _TOGETHER:
        statement = _repeated(table, tuple(columns), merge, together)
        while len(rows) - first >= together:
            values = tuple(chain.from_iterable(rows[first : first + together]))
            connection.exec_driver_sql(statement, values)
            first += together
    if rest := rows[first:]:
        connection.exec_driver_sql(_statement(table, tuple(columns), merge)[0], rest)


@cache
def _repeated(table: Table, names: tuple[str, ...], merge: Merge | None, rows: int) -> str:
    """The statement for so many rows."""
    statement, order = _statement(table, names, merge)
    one = f"({', '.join('?' * len(order))})"
    before, after = statement.split(f"VALUES {one}")
    return f"{before}VALUES {', '.join([one] * rows)}{after}"


@cache
def _statement(table: Table, names: tuple[str, ...], merge: Merge | None) -> tuple[str, list[str]]:
    """The statement for one row as text, and the columns in the order of its parameters."""
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
