"""Insert or update, in the dialect of the database at hand."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from sqlalchemy import Case, ColumnElement, Connection, Table, case
from sqlalchemy.dialects import postgresql, sqlite

Insert = sqlite.Insert | postgresql.Insert


def insert_for(dialect: str, table: Table) -> Insert:
    """An insert that knows ``on_conflict_do_update``. ``dialect`` is "sqlite" or "postgresql"."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


@cache
def replacing(dialect: str, table: Table) -> Insert:
    """An insert of whole rows that replaces the row with the same primary key."""
    insert = insert_for(dialect, table)
    key = table.primary_key.columns.keys()
    rest = {c.name: insert.excluded[c.name] for c in table.columns if c.name not in key}
    return insert.on_conflict_do_update(index_elements=key, set_=rest)


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
