"""Samples out of the store: one by one, or the finest level that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.exponents import BINS, Histograms
from scalescope.packing import unpack
from sqlalchemy import Connection, Row, Select, func, select

from scalescope_server.store import tables
from scalescope_server.store.levels import bucket_size, finest
from scalescope_server.store.measured import is_periodic
from scalescope_server.store.records import SampleBucket
from scalescope_server.store.sample_rollup import packed_of, pile_of, place_of
from scalescope_server.store.values import scale_of

MAX_BUCKETS = 300
# 128 MiB of counts in one answer: a model of many thousand tensors is shown in coarser buckets.
MAX_CELLS = 2**24


@dataclass(frozen=True, slots=True)
class View:
    """What to read: samples of one ``kind`` and ``rank`` of a run at steps [start, stop)."""

    run: int
    kind: str
    rank: int
    start: int
    stop: int


def read_samples(
    connection: Connection, view: View, points: int, parameters: Sequence[int] | None
) -> tuple[int, list[SampleBucket]]:
    """(steps in a bucket, buckets in order of their steps; several of one step differ in scale or periodic).

    Bucket 1 is the samples themselves, which may be many steps apart. ``points`` is clamped to 1 to
    ``MAX_BUCKETS``; the level is coarser where the tables of all scales would hold more than ``MAX_CELLS``
    (only the coarsest may, in a run of more scales than that). ``parameters`` chooses rows, None is all of the
    run's.
    """
    chosen = np.arange(_rows_of_run(connection, view.run)) if parameters is None else np.asarray(parameters, np.intp)
    points = min(max(points, 1), MAX_BUCKETS)
    tables_at_most = max(MAX_CELLS // (BINS * max(len(chosen), 1)), 1)
    if _fits(connection, _exact_keys(view), min(points, tables_at_most)):
        return 1, [_of_sample(stored, chosen) for stored in connection.execute(_exact(view))]
    level, coarsest = finest(view.start, view.stop, points, lowest=1), _levels_of_run(connection, view.run)
    while level < coarsest and not _fits(connection, _rolled_keys(view, level), tables_at_most):
        level += 1
    return bucket_size(level), [_of_bucket(stored, chosen) for stored in connection.execute(_rolled(view, level))]


def _rows_of_run(connection: Connection, run: int) -> int:
    count = select(func.count()).select_from(tables.parameter).where(tables.parameter.c.run == run)
    return int(connection.execute(count).scalar_one())


def _levels_of_run(connection: Connection, run: int) -> int:
    return int(connection.execute(select(tables.run.c.levels).where(tables.run.c.key == run)).scalar_one())


def _fits(connection: Connection, keys: Select[Any], limit: int) -> bool:
    counted = select(func.count()).select_from(keys.limit(limit + 1).subquery())
    return bool(connection.execute(counted).scalar_one() <= limit)


def _exact_keys(view: View) -> Select[Any]:
    row = tables.sample.c
    within = select(row.key).where(row.run == view.run, row.kind == view.kind, row.rank == view.rank)
    return within.where(row.step >= view.start, row.step < view.stop)


def _exact(view: View) -> Select[Any]:
    row = tables.sample.c
    return _exact_keys(view).with_only_columns(tables.sample).order_by(row.step, row.key)


def _rolled_keys(view: View, level: int) -> Select[Any]:
    row, size = tables.sample_rollup.c, bucket_size(level)
    within = select(row.bucket).where(row.run == view.run, row.kind == view.kind, row.rank == view.rank)
    return within.where(row.level == level, row.bucket.between(view.start // size, (view.stop - 1) // size))


def _rolled(view: View, level: int) -> Select[Any]:
    row = tables.sample_rollup.c
    whole = _rolled_keys(view, level).with_only_columns(tables.sample_rollup)
    return whole.order_by(row.bucket, row.scale_flag, row.scale, row.periodic)


def _of_sample(stored: Row[Any], chosen: NDArray[np.intp]) -> SampleBucket:
    if stored.positions is None:
        positions = np.arange(stored.rows)
    else:
        positions = np.frombuffer(stored.positions, "<i4").astype(np.int64)
    # Row of the table that holds each parameter, -1 where it has none.
    rows = np.full(int(positions.max(initial=-1)) + 1, -1)
    rows[place_of(positions)] = np.arange(stored.rows)
    table = unpack(packed_of(stored))
    ones = np.ones(stored.rows, np.int64)
    return _bucket(stored, stored.step, is_periodic(stored.reason), table, ones, _looked_up(rows, chosen))


def _of_bucket(stored: Row[Any], chosen: NDArray[np.intp]) -> SampleBucket:
    pile = pile_of(stored)
    rows = _looked_up(np.arange(stored.rows), chosen)
    return _bucket(stored, stored.bucket * bucket_size(stored.level), stored.periodic, pile.table, pile.samples, rows)


def _looked_up(rows: NDArray[np.int64], chosen: NDArray[np.intp]) -> NDArray[np.int64]:
    found = np.full(len(chosen), -1)
    known = chosen < len(rows)
    found[known] = rows[chosen[known]]
    return found


def _bucket(
    stored: Row[Any],
    step: int,
    periodic: bool,
    table: Histograms,
    samples: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> SampleBucket:
    """The named ``rows`` of ``table``, zeros for -1; what is not named is let go."""
    scale = scale_of(stored.scale, stored.scale_flag)
    if np.array_equal(rows, np.arange(table.rows)):
        return SampleBucket(step, scale, periodic, samples, table)
    if (rows < 0).any():
        table = Histograms.stack([table, Histograms.empty(1)])
        samples = np.concatenate([samples, [0]])
    return SampleBucket(step, scale, periodic, samples[rows], table.take(rows))
