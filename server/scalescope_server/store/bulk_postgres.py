"""Many rows at once on Postgres: COPY for new ones, one statement over arrays for those that may be there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import JSON, URL, Column, Connection, Insert, Integer, String, Table, func, select, text
from sqlalchemy.exc import DBAPIError

from scalescope_server.store.binary_arrays import BinaryArray, binary_array
from scalescope_server.store.json_text import dumps
from scalescope_server.store.texts import storable
from scalescope_server.store.upsert import Merge, inserting
from scalescope_server.store.values import bound

if TYPE_CHECKING:
    import psycopg

Columns = Mapping[str, Sequence[Any] | NDArray[Any]]

_DIALECT = URL.create("postgresql").get_dialect()()
# What stands before the rows of a binary COPY (a signature, no flags, no more of a head) and behind them.
_COPY_HEAD, _COPY_END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
_KINDS = {"SMALLINT": "i2", "INTEGER": "i4", "BIGINT": "i8", "DOUBLE PRECISION": "f8"}


def copy(connection: Connection, table: Table, columns: Columns) -> None:
    """Insert at least one row."""
    statement, types = _copying(table, tuple(columns))
    together = _rows_of_numbers(table, columns)
    plain = [_plain(table.c[name], values) for name, values in columns.items()] if together is None else []
    driver: psycopg.Connection[Any] | Any = connection.connection.driver_connection
    with _told(connection, statement), driver.cursor() as cursor, cursor.copy(statement) as rows:
        if together is not None:
            rows.write(together)
            return
        rows.set_types(types)
        for row in zip(*plain, strict=True):
            rows.write_row(row)


def _rows_of_numbers(table: Table, columns: Columns) -> bytes | None:
    """The rows as COPY takes them, made at once; None where a column is not an array of numbers."""
    kinds = {name: kind for name in columns if (kind := _KINDS.get(_declared(table.c[name])))}
    arrays = {name: values for name, values in columns.items() if isinstance(values, np.ndarray) and name in kinds}
    if len(arrays) < len(columns):
        return None
    # Of a row how many fields it has; of each field how many bytes it has, -1 for null, and these.
    parts = [(f"{name} {part}", kind) for name in arrays for part, kind in (("bytes", ">i4"), ("", f">{kinds[name]}"))]
    rows = np.zeros(len(next(iter(arrays.values()))), [("fields", ">i2"), *parts])
    rows["fields"], place = len(arrays), 2
    kept = np.ones((len(rows), rows.itemsize), np.bool_)
    for name, values in arrays.items():
        known, size = np.isfinite(values), int(kinds[name][1])
        rows[f"{name} bytes"] = np.where(known, size, -1)
        rows[f"{name} "][known] = values[known]
        kept[~known, place + 4 : place + 4 + size] = False
        place += 4 + size
    plain = rows.tobytes() if kept.all() else rows.view(np.uint8).reshape(len(rows), -1)[kept].tobytes()
    return _COPY_HEAD + plain + _COPY_END


def merge(connection: Connection, table: Table, columns: Columns, merged: Merge) -> None:
    """Insert at least one row, or merge it into the one with its primary key."""
    arrays = {name: _array(table.c[name], values) for name, values in columns.items()}
    connection.execute(_merging(table, tuple(columns), merged), arrays)


@cache
def _copying(table: Table, names: tuple[str, ...]) -> tuple[str, list[str]]:
    """The statement, and the types of its columns: of JSON as text, whose bytes are the same."""
    quoted = _DIALECT.identifier_preparer
    listed = ", ".join(quoted.quote(name) for name in names)
    types = [_type_of(table.c[name]) for name in names]
    return f"COPY {quoted.format_table(table)} ({listed}) FROM STDIN (FORMAT BINARY)", types


def _type_of(column: Column[Any]) -> str:
    return "text" if isinstance(column.type, JSON | String) else _declared(column).lower()


@cache
def _merging(table: Table, names: tuple[str, ...], merged: Merge) -> Insert:
    # As text, so that SQLAlchemy leaves the values as they are.
    arrays = (text(f"CAST(:{name} AS {_declared(table.c[name])}[])") for name in names)
    rows = select(text("*")).select_from(func.unnest(*arrays))
    return inserting("postgresql", table, names, merged).from_select(names, rows)


@cache
def _declared(column: Column[Any]) -> str:
    return str(column.type.compile(_DIALECT))


def _array(column: Column[Any], values: Sequence[Any] | NDArray[Any]) -> BinaryArray | list[Any]:
    kind = _KINDS.get(_declared(column))
    if kind is None:
        return _plain(column, values)
    if not isinstance(values, np.ndarray):
        null = np.array([value is None for value in values], np.bool_)
        return binary_array(np.array([0 if value is None else value for value in values], kind), kind, null)
    null = ~np.isfinite(values) if values.dtype.kind == "f" else np.zeros(len(values), np.bool_)
    return binary_array(values, kind, null)


def _plain(column: Column[Any], values: Sequence[Any] | NDArray[Any]) -> list[Any]:
    if isinstance(values, np.ndarray):
        return bound(values, whole=isinstance(column.type, Integer))
    if isinstance(column.type, JSON):
        return [None if value is None else dumps(value) for value in values]
    if isinstance(column.type, String):
        return [None if value is None else storable(value) for value in values]
    return list(values)


@contextmanager
def _told(connection: Connection, statement: str) -> Iterator[None]:
    """What the driver raises, as SQLAlchemy would: COPY goes past it."""
    base = connection.dialect.loaded_dbapi.Error
    try:
        yield
    except base as error:
        lost = connection.dialect.is_disconnect(error, connection.connection.driver_connection, None)
        told = DBAPIError.instance(
            statement, None, error, base, connection_invalidated=lost, dialect=connection.dialect
        )
        if lost:
            connection.invalidate(error)
        raise told from error
