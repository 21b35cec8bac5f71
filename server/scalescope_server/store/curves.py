"""Series out of the store: exact, or the finest level that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Select, bindparam, select

from scalescope_server.store import tables
from scalescope_server.store.derived import MERGED_SERIES
from scalescope_server.store.levels import bucket_size, finest
from scalescope_server.store.number_columns import read_columns
from scalescope_server.store.pruned import is_pruned
from scalescope_server.store.records import Series
from scalescope_server.store.tables import ALL_RANKS, STEP_COLUMNS
from scalescope_server.store.values import FLAG_BITS, FLAG_MASK, restored

MAX_POINTS = 1500

Ranks = Callable[[str], int]

# Both follow from ``skipped`` and are not stored.
_COUNTS = ("attempted", "applied")


def read_series(
    connection: Connection, run: int, names: Sequence[str], start: int, stop: int, points: int, ranks: Ranks
) -> tuple[int, dict[str, Series]]:
    """(steps in a bucket, name -> series) over the buckets that meet the steps [start, stop).

    ``points`` is clamped to 1 to ``MAX_POINTS``. A name the run does not have reads as an empty series. Where exact
    values of the steps were pruned, a bucket has at least the steps of the lowest level.
    """
    lowest = int(is_pruned(connection, run, start, stop))
    level = finest(start, stop, min(max(points, 1), MAX_POINTS), lowest=lowest)
    found: dict[str, Series] = {}
    for rank in sorted(set(map(ranks, names))):
        some = [name for name in names if ranks(name) == rank]
        if level:
            found |= _rolled(connection, run, some, start, stop, level, rank)
        else:
            found |= _exact(connection, run, some, start, stop, rank)
    return bucket_size(level), {name: found[name] for name in names}


def ranks_of(world_size: int, rank: int | None) -> Ranks:
    """Name -> whose values are read: of ``rank``; for None of rank 0, and what is read out of measurements of all."""
    if rank is not None:
        return lambda _: rank
    merged = frozenset(MERGED_SERIES) if world_size > 1 else frozenset[str]()
    return lambda name: ALL_RANKS if name in merged else 0


def series_names(connection: Connection, run: int) -> list[str]:
    """Every name the run has values for, sorted; the counts of updates among them as soon as there is one."""
    names = set(connection.execute(select(tables.series.c.name).where(tables.series.c.run == run)).scalars())
    return sorted(names.union(_COUNTS) if "skipped" in names else names)


def exact_series(steps: Sequence[int], values: Sequence[float | None], flags: Sequence[int]) -> Series:
    """One bucket for each value."""
    given = restored(values, flags)
    finite, nan = np.isfinite(given), np.isnan(given)
    plain = np.where(finite, given, np.nan)
    counts = finite.astype(np.int64)
    infinite = (~finite & ~nan).astype(np.int64)
    return Series(np.array(steps, np.int64), counts, plain, plain, plain, plain, nan.astype(np.int64), infinite)


def counts_of(name: str, skipped: Series) -> Series:
    """The series ``attempted`` (1 for each update) or ``applied`` (1 for each that was not skipped)."""
    n, none = skipped.n, np.zeros_like(skipped.n)
    if name == "attempted":
        one = np.ones(len(n))
        return Series(skipped.step, n, one, one, one, n.astype(np.float64), none, none)
    return Series(skipped.step, n, 1 - skipped.max, 1 - skipped.min, 1 - skipped.last, n - skipped.sum, none, none)


def _rolled(
    connection: Connection, run: int, names: Sequence[str], start: int, stop: int, level: int, rank: int
) -> dict[str, Series]:
    size, keys = bucket_size(level), _keys(connection, run, names)
    of_view = {"of_rank": rank, "of_level": level, "start": start // size, "end": (stop - 1) // size}
    if not keys:
        return _completed(names, {})
    series, *columns = read_columns(connection, _ROLLED, {**of_view, "of_series": sorted(keys.values())})
    first = {key: slice(*series.searchsorted([key, key + 1]).tolist()) for key in keys.values()}
    return _completed(
        names, {name: _rolled_series([column[first[key]] for column in columns], size) for name, key in keys.items()}
    )


def _rolled_series(columns: Sequence[NDArray[Any]], size: int) -> Series:
    bucket, n, low, high, last, total, nan, inf = columns
    return Series(bucket * size, n, low, high, last, np.where((n > 0) & np.isfinite(total), total, np.nan), nan, inf)


def _exact(
    connection: Connection, run: int, names: Sequence[str], start: int, stop: int, rank: int
) -> dict[str, Series]:
    of_view = {"of_rank": rank, "start": start, "end": stop - 1}
    stored = {}
    wanted = {"skipped" if name in _COUNTS else name for name in names}
    for name in wanted.intersection(STEP_COLUMNS):
        stored[name] = _exact_column(connection, name, {**of_view, "of_run": run})
    own = [name for name in wanted if name not in STEP_COLUMNS]
    for name, key in _keys(connection, run, own).items():
        rows = connection.execute(_SCALARS, {**of_view, "of_series": key}).all()
        stored[name] = exact_series([r.step for r in rows], [r.value for r in rows], [r.flag for r in rows])
    return _completed(names, stored)


def _exact_column(connection: Connection, name: str, of_view: Mapping[str, int]) -> Series:
    shift = FLAG_BITS * STEP_COLUMNS.index(name)
    rows = [
        (step, value, nonfinite >> shift & FLAG_MASK)
        for step, value, nonfinite in connection.execute(_COLUMNS[name], of_view)
    ]
    told = [row for row in rows if row[1] is not None or row[2]]
    return exact_series([r[0] for r in told], [r[1] for r in told], [r[2] for r in told])


def _completed(names: Sequence[str], stored: Mapping[str, Series]) -> dict[str, Series]:
    """What was asked for out of what is stored."""
    empty = exact_series([], [], [])
    found = {name: stored.get(name, empty) for name in names if name not in _COUNTS}
    skipped = stored.get("skipped", empty)
    return found | {name: counts_of(name, skipped) for name in names if name in _COUNTS}


def _keys(connection: Connection, run: int, names: Sequence[str]) -> dict[str, int]:
    wanted = {"skipped" if name in _COUNTS else name for name in names}
    return {row.name: row.key for row in connection.execute(_KEYS, {"of_run": run, "names": sorted(wanted)})}


def _column_query(name: str) -> Select[Any]:
    row = tables.step.c
    return (
        select(row.step, row[name], row.nonfinite)
        .where(row.run == bindparam("of_run"), row.rank == bindparam("of_rank"))
        .where(row.step.between(bindparam("start"), bindparam("end")))
        .order_by(row.step, row.segment)
    )


_COLUMNS = {name: _column_query(name) for name in STEP_COLUMNS}
_KEYS = select(tables.series.c.name, tables.series.c.key).where(
    tables.series.c.run == bindparam("of_run"), tables.series.c.name.in_(bindparam("names", expanding=True))
)
_SCALARS = (
    select(tables.scalar.c.step, tables.scalar.c.value, tables.scalar.c.flag)
    .where(tables.scalar.c.series == bindparam("of_series"), tables.scalar.c.rank == bindparam("of_rank"))
    .where(tables.scalar.c.step.between(bindparam("start"), bindparam("end")))
    .order_by(tables.scalar.c.step, tables.scalar.c.segment)
)
_rolled_row = tables.rollup.c
_ROLLED = (
    select(*(_rolled_row[name] for name in ("series", "bucket", "n", "min", "max", "last", "sum", "nan", "inf")))
    .where(_rolled_row.series.in_(bindparam("of_series", expanding=True)), _rolled_row.rank == bindparam("of_rank"))
    .where(_rolled_row.level == bindparam("of_level"))
    .where(_rolled_row.bucket.between(bindparam("start"), bindparam("end")))
    .order_by(_rolled_row.series, _rolled_row.bucket)
)
