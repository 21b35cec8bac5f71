"""Points that were stored anew, folded into the levels again.

A value over all ranks changes with each rank that tells its part of a step. Its buckets are read again from the level
below, eight rows each: what a fold has taken as smallest or largest cannot be taken back out of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from typing import Any

import numpy as np
from sqlalchemy import Connection, bindparam, select

from scalescope_server.store import tables
from scalescope_server.store.levels import FACTOR
from scalescope_server.store.rollup import Folds, Points, coarser, exact, replace_folds
from scalescope_server.store.tables import ALL_RANKS
from scalescope_server.store.values import restored

Touched = Mapping[int, AbstractSet[int]]


def refold(connection: Connection, touched: Touched, levels: int) -> None:
    """Fold the points of all ranks at the ``touched`` steps, of these series each, into the levels 1 to ``levels``."""
    for level in range(1, levels + 1):
        touched = _above(touched)
        for bucket, series in touched.items():
            below = {"of_series": sorted(series), "start": bucket * FACTOR, "end": bucket * FACTOR + FACTOR - 1}
            folds = _exact(connection, below) if level == 1 else _rolled(connection, below | {"of_level": level - 1})
            replace_folds(connection, coarser(folds), level)


def _above(touched: Touched) -> dict[int, set[int]]:
    found: defaultdict[int, set[int]] = defaultdict(set)
    for bucket, series in touched.items():
        found[bucket // FACTOR] |= series
    return found


def _exact(connection: Connection, below: Mapping[str, object]) -> Folds:
    rows = connection.execute(_POINTS, below).all()
    of_series = groupby(rows, key=lambda row: int(row.series))
    return exact([_points(series, list(of_one)) for series, of_one in of_series])


def _points(series: int, rows: Sequence[Any]) -> Points:
    steps = np.array([row.step for row in rows], np.int64)
    return Points(series, ALL_RANKS, steps, restored([row.value for row in rows], [row.flag for row in rows]))


def _rolled(connection: Connection, below: Mapping[str, object]) -> Folds:
    rows = connection.execute(_BUCKETS, below).all()
    # Null becomes NaN; whole numbers below 2**53 are exact as float64.
    columns = np.array([tuple(row) for row in rows], np.float64).reshape(len(rows), -1).T
    whole = [column.astype(np.int64) for column in columns[:6]]
    series, bucket, n, last_step, nan, inf = whole
    low, high, last, total = columns[6:]
    return Folds(
        series,
        np.full(len(rows), ALL_RANKS),
        bucket,
        n,
        np.where(n > 0, low, np.inf),
        np.where(n > 0, high, -np.inf),
        last,
        last_step,
        total,
        nan,
        inf,
    )


_scalar, _rollup = tables.scalar.c, tables.rollup.c
_POINTS = (
    select(_scalar.series, _scalar.step, _scalar.value, _scalar.flag)
    .where(_scalar.series.in_(bindparam("of_series", expanding=True)), _scalar.rank == ALL_RANKS)
    .where(_scalar.step.between(bindparam("start"), bindparam("end")))
    .order_by(_scalar.series, _scalar.step, _scalar.segment)
)
_BUCKETS = (
    select(
        *(_rollup[name] for name in ("series", "bucket", "n", "last_step", "nan", "inf", "min", "max", "last", "sum"))
    )
    .where(_rollup.series.in_(bindparam("of_series", expanding=True)), _rollup.rank == ALL_RANKS)
    .where(_rollup.level == bindparam("of_level"), _rollup.bucket.between(bindparam("start"), bindparam("end")))
    .order_by(_rollup.series, _rollup.bucket)
)
