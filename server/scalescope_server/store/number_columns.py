"""Columns of numbers, read as arrays: of a million rows, each as an object takes longer to make than to read.

On Postgres the rows are put together there, an array for each column, whose bytes numpy takes as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Float,
    Integer,
    LargeBinary,
    Select,
    cast,
    func,
    literal_column,
    select,
)

from scalescope_server.store.binary_arrays import numbers_of


def read_columns(
    connection: Connection, query: Select[Any], values: Mapping[str, Any] | None = None
) -> list[NDArray[Any]]:
    """What ``query`` selects, column by column, in its order, with ``values`` bound: each an array over its rows.

    float64, with NaN for null; int64 of whole numbers that are never null.
    """
    kinds = [_kind(column) for column in query.selected_columns]
    if connection.dialect.name == "postgresql":
        found = connection.execute(_gathering(query), values).one()
        return [
            np.empty(0, kind) if data is None else numbers_of(data).astype(kind)
            for data, kind in zip(found, kinds, strict=True)
        ]
    return [np.array(column, kind) for column, kind in zip(_as_stored(connection, query, values), kinds, strict=True)]


def _as_stored(
    connection: Connection, query: Select[Any], values: Mapping[str, Any] | None
) -> Sequence[Sequence[float | None]]:
    """The columns as the driver makes their rows: those that know their columns' names take longer."""
    with connection.execute(query, values) as result:
        assert result.cursor is not None
        rows = result.cursor.fetchall()
    return list(zip(*rows, strict=True)) or [()] * len(query.selected_columns)


def _kind(column: ColumnElement[Any]) -> type[np.generic]:
    whole = isinstance(column, Column) and isinstance(column.type, Integer) and not column.nullable
    return np.int64 if whole else np.float64


def _gathering(query: Select[Any]) -> Select[Any]:
    """One row with the bytes of an array for each column. What comes in an order is gathered in that."""
    rows = query.subquery()
    arrays: list[ColumnElement[Any]] = [
        func.array_agg(column if _kind(own) is np.int64 else func.coalesce(cast(column, Float(53)), _NAN))
        for own, column in zip(query.selected_columns, rows.columns, strict=True)
    ]
    sent: list[ColumnElement[Any]] = [func.array_send(array, type_=LargeBinary) for array in arrays]
    return select(*sent)


_NAN: ColumnElement[Any] = literal_column("'NaN'::float8", Float(53))
