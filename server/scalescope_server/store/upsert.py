"""Insert or update, in the dialect of the database at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from sqlalchemy import Case, ColumnElement, Connection, Table, case
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.base import ReadOnlyColumnCollection

Insert = sqlite.Insert | postgresql.Insert
Excluded = ReadOnlyColumnCollection[str, Any]
# From the table and the row that could not be inserted: the columns that change, and to what.
Merge = Callable[[Table, Excluded], Mapping[str, ColumnElement[Any]]]


def insert_for(dialect: str, table: Table) -> Insert:
    """An insert that knows ``on_conflict_do_update``. ``dialect`` is "sqlite" or "postgresql"."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def replaced(table: Table, new: Excluded) -> Mapping[str, ColumnElement[Any]]:
    """Every column of the new row."""
    return {c.name: new[c.name] for c in table.columns if not c.primary_key}


def inserting(dialect: str, table: Table, names: Iterable[str], merge: Merge | None) -> Insert:
    """An insert of the columns ``names`` that merges a row into the one with the same primary key."""
    insert = insert_for(dialect, table)
    if merge is None:
        return insert
    given = set(names)
    changed = {name: value for name, value in merge(table, insert.excluded).items() if name in given}
    return insert.on_conflict_do_update(index_elements=table.primary_key.columns.keys(), set_=changed)


@cache
def replacing(dialect: str, table: Table) -> Insert:
    """An insert of whole rows that replaces the row with the same primary key."""
    return inserting(dialect, table, table.columns.keys(), replaced)


def replace_rows(connection: Connection, table: Table, rows: Iterable[dict[str, Any]]) -> None:
    """Insert ``rows``, all with the same columns, over those with the same primary key."""
    found = list(rows)
    if found:
        connection.execute(replacing(connection.dialect.name, table), found)


def larger(column: ColumnElement[Any], value: object) -> Case[Any]:
    """The larger of the two in SQL; ``value`` where the column is null. Null never wins."""
    return case(((column.is_(None)) | (column < value), value), else_=column)


def smaller(column: ColumnElement[Any], value: object) -> Case[Any]:
    """The smaller of the two in SQL; ``value`` where the column is null. Null never wins."""
    return case(((column.is_(None)) | (column > value), value), else_=column)
