"""Many rows at once, given as columns: a dictionary for each row costs more than the row.

A column is a list of what is bound, or an array: of float64, what is not finite is NULL (its flag stands beside it, see
``values``), and a column of whole numbers may come as float64 too, so that a gap needs no list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray
from sqlalchemy import Connection, Table

from scalescope_server.store import bulk_postgres, bulk_sqlite
from scalescope_server.store.upsert import Merge, replaced

Columns = Mapping[str, Sequence[Any] | NDArray[Any]]


def insert_rows(connection: Connection, table: Table, columns: Columns) -> None:
    """Insert rows that are not there yet. All ``columns`` are equally long; those left out have their default."""
    if not _rows(columns):
        return
    if connection.dialect.name == "postgresql":
        bulk_postgres.copy(connection, table, columns)
    else:
        bulk_sqlite.insert(connection, table, columns, None)


def merge_rows(connection: Connection, table: Table, columns: Columns, merge: Merge = replaced) -> None:
    """Insert rows, or change those with the same primary key to what ``merge`` makes of them.

    A key comes once in ``columns``. ``merge`` is a function of a module, since its statement is kept: it is given the
    table and the new row's columns, and gives the new value of each column that changes. By default the new row's.
    """
    if not _rows(columns):
        return
    if connection.dialect.name == "postgresql":
        bulk_postgres.merge(connection, table, columns, merge)
    else:
        bulk_sqlite.insert(connection, table, columns, merge)


def _rows(columns: Columns) -> int:
    (rows,) = {len(column) for column in columns.values()} or {0}
    return rows
