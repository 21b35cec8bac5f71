"""Samples out of the store: one by one, or the finest level that fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.exponents import BINS
from scalescope.packing import PackedHistograms, Trimmed, unpack_trimmed
from sqlalchemy import Connection, Row

from scalescope_server.store.folding import counts_of, rows_at
from scalescope_server.store.levels import bucket_size
from scalescope_server.store.measured import is_periodic
from scalescope_server.store.records import SampleBucket
from scalescope_server.store.sample_rollup import Pile, packed_of
from scalescope_server.store.shares import Shares, read_shares
from scalescope_server.store.tables import ALL_RANKS
from scalescope_server.store.values import scale_of
from scalescope_server.store.views import SAMPLES, View, read_view


def read_samples(
    connection: Connection, view: View, points: int, chosen: Sequence[int]
) -> tuple[int, list[SampleBucket]]:
    """(steps in a bucket, buckets in order of their steps; several of one step differ in scale or periodic).

    Bucket 1 is the samples themselves, those of all ranks merged where the view is of all. ``chosen``: the positions of
    the parameters or modules that make the rows.
    """
    rows = np.asarray(chosen, np.int64)
    level, found = read_view(connection, SAMPLES, view, points, cells=BINS * len(rows))
    if level == 0 and view.rank == ALL_RANKS:
        return 1, _of_ranks(read_shares(connection, view), found, rows)
    read = _of_bucket if level else _of_sample
    return bucket_size(level), [read(stored, rows) for stored in found]


def _of_ranks(shares: Shares, found: Iterable[Row[Any]], chosen: NDArray[np.int64]) -> list[SampleBucket]:
    piles: dict[tuple[int, int, float, int, bool], Pile] = {}
    for stored in found:
        key = (stored.step, stored.segment, stored.scale, stored.scale_flag, is_periodic(stored.reason))
        pile = piles.setdefault(key, Pile.empty(len(chosen)))
        rows = rows_at(stored.positions, stored.rows, chosen)
        reported, leads = shares.taken(stored.segment, stored.rank, chosen)
        taken = np.flatnonzero((rows >= 0) & reported)
        pile.add(taken, unpack_trimmed(packed_of(stored), rows[taken]), leads[taken].astype(np.int64))
    return [
        SampleBucket(step, scale_of(scale, flag), periodic, pile.samples, pile.kept)
        for (step, _, scale, flag, periodic), pile in piles.items()
        # What no rank reports is left out, as a rank's own copy of what another one reports is.
        if pile.samples.any() or pile.kept.any()
    ]


def _of_sample(stored: Row[Any], chosen: NDArray[np.int64]) -> SampleBucket:
    rows = rows_at(stored.positions, stored.rows, chosen)
    samples = (rows >= 0).astype(np.int64)
    return _bucket(stored, stored.step, is_periodic(stored.reason), samples, rows)


def _of_bucket(stored: Row[Any], chosen: NDArray[np.int64]) -> SampleBucket:
    rows = rows_at(None, stored.rows, chosen)
    samples = np.append(counts_of(stored.samples, stored.rows), 0)[rows]
    return _bucket(stored, stored.bucket * bucket_size(stored.level), stored.periodic, samples, rows)


def _bucket(
    stored: Row[Any], step: int, periodic: bool, samples: NDArray[np.int64], rows: NDArray[np.int64]
) -> SampleBucket:
    scale = scale_of(stored.scale, stored.scale_flag)
    return SampleBucket(step, scale, periodic, samples, _unpacked(packed_of(stored), rows))


def _unpacked(packed: PackedHistograms, rows: NDArray[np.int64]) -> Trimmed:
    """The named ``rows`` of a packed table, zeros for -1. Most views are of all rows, or of one of many."""
    if np.array_equal(rows, np.arange(packed.rows)):
        return unpack_trimmed(packed)
    if (rows >= 0).all():
        return unpack_trimmed(packed, rows)
    known = np.flatnonzero(rows >= 0)
    pile = Pile.empty(len(rows))
    pile.add(known, unpack_trimmed(packed, rows[known]))
    return pile.kept
