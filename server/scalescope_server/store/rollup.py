"""Scalars folded into levels: n, min, max, last, sum, nan and inf for each bucket of each series.

A fold is a table of columns, one row for each (series, rank, bucket). Folding is associative, so the rows of a
level can be folded from those of the level below, and what is new can be added to what is stored whatever
the split into batches. ``last`` goes by the step, not by arrival.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Double, Table, case, insert, literal, literal_column, select

from scalescope_server.store import tables
from scalescope_server.store.bulk import merge_rows
from scalescope_server.store.levels import FACTOR
from scalescope_server.store.upsert import Excluded, larger, smaller

Whole = NDArray[np.int64]
Real = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Points:
    """New exact values of one series and rank: ``steps`` rising, int64 [n], and ``values``, float64 [n]."""

    series: int
    rank: int
    steps: Whole
    values: Real


@dataclass(frozen=True, slots=True)
class Folds:
    """One row for each bucket, sorted by (series, rank, bucket); all arrays have that many rows.

    ``min`` and ``max`` are inf and -inf where ``n`` is 0: the neutral elements. ``last`` is NaN where the
    value at ``last_step`` is not finite.
    """

    series: Whole
    rank: Whole
    bucket: Whole
    n: Whole
    min: Real
    max: Real
    last: Real
    last_step: Whole
    sum: Real
    nan: Whole
    inf: Whole


def in_order(points: Sequence[Points]) -> tuple[Whole, Whole, Whole, Real]:
    """(series, rank, steps, values) of all points, sorted as the tables are: neighbours are written together."""
    lengths = [len(p.steps) for p in points]
    series = np.repeat(np.array([p.series for p in points], np.int64), lengths)
    rank = np.repeat(np.array([p.rank for p in points], np.int64), lengths)
    steps = np.concatenate([np.empty(0, np.int64), *(p.steps for p in points)])
    values = np.concatenate([np.empty(0), *(p.values for p in points)])
    order = np.lexsort((steps, rank, series))
    return series[order], rank[order], steps[order], values[order]


def exact(points: Sequence[Points]) -> Folds:
    """The values as buckets of one step each."""
    series, rank, steps, values = in_order(points)
    finite = np.isfinite(values)
    nan = np.isnan(values)
    return Folds(
        series,
        rank,
        steps,
        finite.astype(np.int64),
        np.where(finite, values, np.inf),
        np.where(finite, values, -np.inf),
        np.where(finite, values, np.nan),
        steps,
        np.where(finite, values, 0.0),
        nan.astype(np.int64),
        (~finite & ~nan).astype(np.int64),
    )


def coarser(folds: Folds) -> Folds:
    """The same a level higher: eight buckets become one."""
    bucket = folds.bucket // FACTOR
    changes = (np.diff(folds.series) != 0) | (np.diff(folds.rank) != 0) | (np.diff(bucket) != 0)
    first = np.flatnonzero(np.concatenate([[True], changes]))
    final = np.concatenate([first[1:], [len(bucket)]]) - 1
    # Finite values may add up to infinity; then the sum is told as not known.
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.reduceat(folds.sum, first)
    return Folds(
        folds.series[first],
        folds.rank[first],
        bucket[first],
        np.add.reduceat(folds.n, first),
        np.minimum.reduceat(folds.min, first),
        np.maximum.reduceat(folds.max, first),
        folds.last[final],
        folds.last_step[final],
        sums,
        np.add.reduceat(folds.nan, first),
        np.add.reduceat(folds.inf, first),
    )


def add_points(connection: Connection, points: Sequence[Points], levels: int) -> None:
    """Add new values, each told once, to the stored levels 1 to ``levels``."""
    if not points:
        return
    folds = exact(points)
    of_levels = []
    for level in range(1, levels + 1):
        folds = coarser(folds)
        of_levels.append(_columns(folds, level))
    together = {name: np.concatenate([columns[name] for columns in of_levels]) for name in of_levels[0]}
    merge_rows(connection, tables.rollup, together, _added)


def replace_folds(connection: Connection, folds: Folds, level: int) -> None:
    """Store whole buckets of ``level`` over those that are there."""
    merge_rows(connection, tables.rollup, _columns(folds, level))


def promote(connection: Connection, run: int, level: int) -> None:
    """Begin level ``level + 1`` of a run whose every step lies in the first bucket of ``level``."""
    of_run = select(tables.series.c.key).where(tables.series.c.run == run)
    columns = [c for c in tables.rollup.columns if c.name != "level"]
    first = select(*columns, literal(level + 1)).where(
        tables.rollup.c.series.in_(of_run), tables.rollup.c.level == level, tables.rollup.c.bucket == 0
    )
    connection.execute(insert(tables.rollup).from_select([*(c.name for c in columns), "level"], first))


def _columns(folds: Folds, level: int) -> dict[str, NDArray[Any]]:
    """The columns of the table; a minimum of nothing is infinite, which is bound as null."""
    return {
        "series": folds.series,
        "rank": folds.rank,
        "level": np.full(len(folds.bucket), level),
        "bucket": folds.bucket,
        "n": folds.n,
        "min": folds.min,
        "max": folds.max,
        "last": folds.last,
        "last_step": folds.last_step,
        "sum": folds.sum,
        "nan": folds.nan,
        "inf": folds.inf,
    }


def _added(stored: Table, new: Excluded) -> Mapping[str, ColumnElement[Any]]:
    """What a stored bucket becomes with a new fold of other steps."""
    was = stored.c
    later = new.last_step >= was.last_step
    return {
        "n": was.n + new.n,
        "min": smaller(was.min, new.min),
        "max": larger(was.max, new.max),
        "last": case((later, new.last), else_=was.last),
        "last_step": larger(was.last_step, new.last_step),
        "sum": _sum(was.sum, new.sum),
        "nan": was.nan + new.nan,
        "inf": was.inf + new.inf,
    }


def _sum(was: ColumnElement[Any], new: ColumnElement[Any]) -> ColumnElement[Any]:
    """Null where it leaves the range of floats: Postgres would refuse the statement. A case looks in its order."""
    both = was + new
    return case(
        (was > _ZERO, case((new < _MOST - was, both))),
        (was < _ZERO, case((new > -_MOST - was, both))),
        else_=both,
    )


# As text, since a merge may hold no values. A little below the largest float, however a database reads it.
_ZERO: ColumnElement[float] = literal_column("0", Double)
_MOST: ColumnElement[float] = literal_column("1.797e308", Double)
