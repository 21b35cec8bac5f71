"""Samples out of the store: one by one, or the finest level that fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.exponents import BINS, Histograms
from scalescope.packing import unpack
from sqlalchemy import Connection, Row

from scalescope_server.store.folding import looked_up, positions_of, rows_of
from scalescope_server.store.levels import bucket_size
from scalescope_server.store.measured import is_periodic
from scalescope_server.store.records import SampleBucket
from scalescope_server.store.sample_rollup import packed_of, pile_of
from scalescope_server.store.values import scale_of
from scalescope_server.store.views import SAMPLES, View, read_view


def read_samples(
    connection: Connection, view: View, points: int, chosen: Sequence[int]
) -> tuple[int, list[SampleBucket]]:
    """(steps in a bucket, buckets in order of their steps; several of one step differ in scale or periodic).

    Bucket 1 is the samples themselves. ``chosen``: the positions of the parameters or modules that make the rows.
    """
    rows = np.asarray(chosen, np.int64)
    level, found = read_view(connection, SAMPLES, view, points, cells=BINS * len(rows))
    read = _of_bucket if level else _of_sample
    return bucket_size(level), [read(stored, rows) for stored in found]


def _of_sample(stored: Row[Any], chosen: NDArray[np.int64]) -> SampleBucket:
    table = unpack(packed_of(stored))
    rows = rows_of(positions_of(stored.positions, stored.rows), chosen)
    return _bucket(stored, stored.step, is_periodic(stored.reason), table, np.ones(stored.rows, np.int64), rows)


def _of_bucket(stored: Row[Any], chosen: NDArray[np.int64]) -> SampleBucket:
    pile = pile_of(stored)
    rows = looked_up(np.arange(stored.rows), chosen)
    return _bucket(stored, stored.bucket * bucket_size(stored.level), stored.periodic, pile.table, pile.samples, rows)


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
