"""Columns of sums and maxima: folded as their catalogue says, and packed for the database.

A column is float64 [rows], NaN where its value is not known. Of two values the one that is known counts; of two
that are, the sum or the larger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.tallies import MODULE_TALLIES, PARAMETER_TALLIES, PROBE_TALLIES, Fold
from scalescope.packing import compress, decompress
from sqlalchemy import Row

FOLDS: dict[str, Fold] = PARAMETER_TALLIES | MODULE_TALLIES | PROBE_TALLIES

Real = NDArray[np.float64]
Columns = Mapping[str, Real]


def folded(name: str, one: Real, other: Real) -> Real:
    """The column ``name`` of both together, row by row."""
    (both,) = folded_all((name,), one[None], other[None])
    return np.asarray(both)


def folded_all(names: Sequence[str], one: Real, other: Real) -> Real:
    """The columns ``names`` of both together, each [columns, rows]."""
    known = np.fmax(one, other)
    # Sums of finite values may leave float64; and what is infinite both ways is not known.
    with np.errstate(over="ignore", invalid="ignore"):
        total = one + other
    return np.where(_are_maxima(tuple(names)) | np.isnan(one) | np.isnan(other), known, total)


@lru_cache(maxsize=64)
def _are_maxima(names: tuple[str, ...]) -> NDArray[np.bool_]:
    """Whether each column is folded by its maximum, [columns, 1]. Of one that we do not know nothing is known."""
    return np.array([[FOLDS.get(name) == "max"] for name in names], np.bool_)


def unknown(rows: int) -> Real:
    """A column of which nothing is known: the neutral element of :func:`folded`."""
    return np.full(rows, np.nan)


def packed_columns(columns: Columns, rows: int) -> dict[str, Any]:
    """Columns of so many rows, as the columns of a table that hold them: ``rows``, ``names`` and ``body``."""
    raw = b"".join(values.astype("<f8").tobytes() for values in columns.values())
    return {"rows": rows, "names": list(columns), "body": compress(raw)}


def columns_of(row: Row[Any]) -> dict[str, Real]:
    """The columns that a row of a table holds."""
    return dict(zip(row.names, values_of(row), strict=True))


def values_of(row: Row[Any]) -> Real:
    """The same as float64 [columns, rows]."""
    raw = decompress(row.body, expected=8 * len(row.names) * row.rows)
    return np.frombuffer(raw, "<f8").astype(np.float64).reshape(len(row.names), row.rows)
