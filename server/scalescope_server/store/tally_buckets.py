"""Tallies out of the store: one by one, or the finest level that fits; and what probes told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, and_, or_, select

from scalescope_server.store import tables
from scalescope_server.store.columns import Real, columns_of, unknown, values_of
from scalescope_server.store.cursors import packed_cursor, unpacked_cursor
from scalescope_server.store.folding import counts_of, positions_of, rows_at
from scalescope_server.store.levels import bucket_size
from scalescope_server.store.measured import is_periodic
from scalescope_server.store.records import ProbeRow, TallyBucket
from scalescope_server.store.shares import Shares, read_shares
from scalescope_server.store.tables import ALL_RANKS
from scalescope_server.store.tally_rollup import Pile
from scalescope_server.store.values import scale_of
from scalescope_server.store.views import TALLIES, View, read_view

# Each holds the columns of all the run's parameters.
MAX_PROBES = 50


def read_tallies(
    connection: Connection, view: View, points: int, chosen: Sequence[int], names: Sequence[str]
) -> tuple[int, list[TallyBucket]]:
    """(steps in a bucket, buckets in order of their steps; several of one step differ in scale or periodic).

    Bucket 1 is the tallies themselves, those of all ranks merged where the view is of all. ``chosen``: the positions of
    the parameters or modules that make the rows; ``names``: the columns that are kept.
    """
    rows = np.asarray(chosen, np.int64)
    level, found = read_view(connection, TALLIES, view, points, cells=len(names) * len(rows))
    if level == 0 and view.rank == ALL_RANKS:
        return 1, _of_ranks(read_shares(connection, view), found, rows, names)
    read = _of_bucket if level else _of_tally
    return bucket_size(level), [read(stored, rows, names) for stored in found]


def _of_ranks(
    shares: Shares, found: Iterable[Row[Any]], chosen: NDArray[np.int64], names: Sequence[str]
) -> list[TallyBucket]:
    piles: dict[tuple[int, int, float, int, bool], Pile] = {}
    for stored in found:
        key = (stored.step, stored.segment, stored.scale, stored.scale_flag, is_periodic(stored.reason))
        pile = piles.setdefault(key, Pile.empty(len(chosen)))
        rows = rows_at(stored.positions, stored.rows, chosen)
        reported, leads = shares.taken(stored.segment, stored.rank, chosen)
        taken = np.flatnonzero((rows >= 0) & reported)
        columns = _picked(stored, names, rows[taken])
        pile.add(taken, columns, leads[taken].astype(np.int64))
    return [
        TallyBucket(step, scale_of(scale, flag), periodic, pile.tallies, pile.columns)
        for (step, _, scale, flag, periodic), pile in piles.items()
    ]


def read_probes(
    connection: Connection, view: View, *, cursor: str | None, limit: int
) -> tuple[list[ProbeRow], str | None]:
    """Every probe of the steps, in order, and the cursor of the next ones.

    Raises:
        BadCursor: for a cursor that did not come from here.
    """
    row = tables.tally.c
    limit = min(max(limit, 1), MAX_PROBES)
    query = (
        select(tables.tally, tables.probe.c.data)
        .join(tables.probe, tables.probe.c.tally == row.key)
        .where(row.run == view.run, row.kind == view.kind, row.rank == view.rank)
        .where(row.step >= view.start, row.step < view.stop)
    )
    if cursor is not None:
        step, key = unpacked_cursor(cursor, tuple[int, int])
        query = query.where(or_(row.step > step, and_(row.step == step, row.key > key)))
    found = connection.execute(query.order_by(row.step, row.key).limit(limit + 1)).all()
    page = found[:limit]
    after = packed_cursor((page[-1].step, page[-1].key)) if len(found) > limit else None
    return [_probe(stored) for stored in page], after


def _probe(stored: Row[Any]) -> ProbeRow:
    positions = positions_of(stored.positions, stored.rows)
    return ProbeRow(stored.step, stored.rank, stored.at, stored.data, positions, columns_of(stored))


def _of_tally(stored: Row[Any], chosen: NDArray[np.int64], names: Sequence[str]) -> TallyBucket:
    rows = rows_at(stored.positions, stored.rows, chosen)
    taken = (rows >= 0).astype(np.int64)
    return _bucket(stored, stored.step, is_periodic(stored.reason), _picked(stored, names, rows), taken)


def _of_bucket(stored: Row[Any], chosen: NDArray[np.int64], names: Sequence[str]) -> TallyBucket:
    rows = rows_at(None, stored.rows, chosen)
    tallies = np.append(counts_of(stored.tallies, stored.rows), 0)[rows]
    step = stored.bucket * bucket_size(stored.level)
    return _bucket(stored, step, stored.periodic, _picked(stored, names, rows), tallies)


def _bucket(
    stored: Row[Any], step: int, periodic: bool, columns: dict[str, Real], tallies: NDArray[np.int64]
) -> TallyBucket:
    return TallyBucket(step, scale_of(stored.scale, stored.scale_flag), periodic, tallies, columns)


def _picked(stored: Row[Any], names: Sequence[str], rows: NDArray[np.int64]) -> dict[str, Real]:
    """The named ``rows`` of the named columns, NaN for -1 and in a column that is not there."""
    values, places = values_of(stored), {name: place for place, name in enumerate(stored.names)}
    found = {name: values[places[name]][rows] if name in places else unknown(len(rows)) for name in names}
    if (rows < 0).any():
        for column in found.values():
            column[rows < 0] = np.nan
    return found
