"""Samples out of the store: one by one, or the finest level that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.exponents import BINS
from scalescope.packing import unpack
from sqlalchemy import Connection, Row, func, select

from scalescope_server.store import tables
from scalescope_server.store.levels import bucket_size, finest
from scalescope_server.store.measured import is_periodic
from scalescope_server.store.records import SampleBucket
from scalescope_server.store.sample_rollup import Pile, packed_of, pile_of, spread
from scalescope_server.store.values import scale_of

MAX_BUCKETS = 300
# 256 MiB of counts in one answer: a model of many thousand tensors is shown in coarser buckets.
MAX_CELLS = 2**25


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
    ``MAX_BUCKETS``, and to what ``MAX_CELLS`` allows. ``parameters`` chooses rows, None is all of the run's.
    """
    rows = _rows_of_run(connection, view.run)
    chosen = np.arange(rows) if parameters is None else np.asarray(parameters, np.intp)
    points = min(max(points, 1), MAX_BUCKETS, max(MAX_CELLS // (BINS * max(len(chosen), 1)), 1))
    if _sample_count(connection, view) <= points:
        return 1, _exact(connection, view, rows, chosen)
    level = finest(view.start, view.stop, points, lowest=1)
    return bucket_size(level), _rolled(connection, view, level, rows, chosen)


def _rows_of_run(connection: Connection, run: int) -> int:
    count = select(func.count()).select_from(tables.parameter).where(tables.parameter.c.run == run)
    return int(connection.execute(count).scalar_one())


def _sample_count(connection: Connection, view: View) -> int:
    row = tables.sample.c
    within = select(row.key).where(row.run == view.run, row.kind == view.kind, row.rank == view.rank)
    within = within.where(row.step >= view.start, row.step < view.stop).limit(MAX_BUCKETS + 1)
    return int(connection.execute(select(func.count()).select_from(within.subquery())).scalar_one())


def _exact(connection: Connection, view: View, rows: int, chosen: NDArray[np.intp]) -> list[SampleBucket]:
    row = tables.sample.c
    within = select(tables.sample).where(row.run == view.run, row.kind == view.kind, row.rank == view.rank)
    within = within.where(row.step >= view.start, row.step < view.stop).order_by(row.step, row.key)
    found = []
    for stored in connection.execute(within):
        pile = spread(unpack(packed_of(stored)), _positions(stored))
        found.append(_bucket(stored.step, stored, is_periodic(stored.reason), pile.padded(rows), chosen))
    return found


def _positions(stored: Row[Any]) -> NDArray[np.int64]:
    if stored.positions is None:
        return np.arange(stored.rows)
    return np.frombuffer(stored.positions, "<i4").astype(np.int64)


def _rolled(connection: Connection, view: View, level: int, rows: int, chosen: NDArray[np.intp]) -> list[SampleBucket]:
    row = tables.sample_rollup.c
    size = bucket_size(level)
    within = select(tables.sample_rollup).where(row.run == view.run, row.kind == view.kind, row.rank == view.rank)
    within = within.where(row.level == level, row.bucket.between(view.start // size, (view.stop - 1) // size))
    within = within.order_by(row.bucket, row.scale_flag, row.scale, row.periodic)
    return [
        _bucket(stored.bucket * size, stored, stored.periodic, pile_of(stored).padded(rows), chosen)
        for stored in connection.execute(within)
    ]


def _bucket(step: int, stored: Row[Any], periodic: bool, pile: Pile, chosen: NDArray[np.intp]) -> SampleBucket:
    scale = scale_of(stored.scale, stored.scale_flag)
    return SampleBucket(step, scale, periodic, pile.samples[chosen], pile.table.take(chosen))
