"""Samples folded into levels: histograms of one bucket, added up only at the same loss scale.

Rows are the run's parameters in order. A parameter that joins later, or that a sample leaves out, has a row of
zeros and rests on fewer samples: every row counts its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray
from scalescope.numerics.exponents import Histograms
from scalescope.packing import PackedHistograms, decompress, pack, unpack
from sqlalchemy import Connection, Row, bindparam, insert, literal, select

from scalescope_server.store import tables
from scalescope_server.store.levels import bucket_size
from scalescope_server.store.upsert import replace_rows

Place = slice | NDArray[np.int64]


class Key(NamedTuple):
    """The primary key of a roll-up. ``scale`` and ``scale_flag`` as ``values.scale_key`` gives them."""

    run: int
    kind: str
    rank: int
    level: int
    bucket: int
    periodic: bool
    scale: float
    scale_flag: int


@dataclass(frozen=True, slots=True, eq=False)
class Pile:
    """Histograms [parameters] and how many samples each row rests on, int64 [parameters]."""

    table: Histograms
    samples: NDArray[np.int64]

    @staticmethod
    def empty(rows: int) -> Pile:
        return Pile(Histograms.empty(rows), np.zeros(rows, np.int64))

    def add(self, place: Place, table: Histograms, samples: int | NDArray[np.int64] = 1) -> None:
        """Add the rows of ``table``, which rest on so many samples, to those at ``place``."""
        for mine, theirs in zip(_sums(self.table), _sums(table), strict=True):
            mine[place] += theirs
        self.table.amax[place] = np.maximum(self.table.amax[place], table.amax)
        self.samples[place] += samples


@dataclass(frozen=True, slots=True, eq=False)
class NewSample:
    """A sample just stored: its key at level 0, where the bucket is the step, and the places of its rows."""

    key: Key
    table: Histograms
    positions: NDArray[np.int64]


def place_of(positions: NDArray[np.int64]) -> Place:
    """Where rows go that belong to the parameters at ``positions``, all different."""
    in_order = slice(0, len(positions))
    return in_order if np.array_equal(positions, np.arange(len(positions))) else positions


def add_samples(connection: Connection, new: Sequence[NewSample], levels: int) -> None:
    """Add samples, each told once, to the stored levels 1 to ``levels``."""
    for level in range(1, levels + 1):
        of_key: defaultdict[Key, list[NewSample]] = defaultdict(list)
        for sample in new:
            of_key[sample.key._replace(level=level, bucket=sample.key.bucket // bucket_size(level))].append(sample)
        # One bucket after the other: each is as large as a sample of all the run's parameters.
        rows = (_row(key, _folded(_stored(connection, key), samples)) for key, samples in of_key.items())
        replace_rows(connection, tables.sample_rollup, rows)


def promote(connection: Connection, run: int, level: int) -> None:
    """Begin level ``level + 1`` of a run whose every sample lies in the first bucket of ``level``."""
    stored = tables.sample_rollup
    columns = [c for c in stored.columns if c.name != "level"]
    first = select(*columns, literal(level + 1)).where(
        stored.c.run == run, stored.c.level == level, stored.c.bucket == 0
    )
    connection.execute(insert(stored).from_select([*(c.name for c in columns), "level"], first))


def packed_columns(packed: PackedHistograms) -> dict[str, Any]:
    """A packed table as the columns that hold it."""
    return {
        "rows": packed.rows,
        "low": packed.low,
        "bins": packed.bins,
        "width": packed.width,
        "body": packed.body,
    }


def packed_of(row: Row[Any]) -> PackedHistograms:
    """The packed table that a row's columns hold."""
    return PackedHistograms(row.rows, row.low, row.bins, row.width, row.body)


def pile_of(row: Row[Any]) -> Pile:
    """The stored pile, which may be added to. ``row`` has the columns of ``sample_rollup``."""
    samples = np.frombuffer(decompress(row.samples, expected=8 * row.rows), "<i8")
    return Pile(_writable(unpack(packed_of(row))), samples.astype(np.int64))


def _folded(stored: Pile | None, samples: Sequence[NewSample]) -> Pile:
    rows = max(int(sample.positions.max(initial=-1)) + 1 for sample in samples)
    if stored is not None and stored.table.rows >= rows:
        pile = stored
    else:
        pile = Pile.empty(rows)
        if stored is not None:
            pile.add(slice(0, stored.table.rows), stored.table, stored.samples)
    for sample in samples:
        pile.add(place_of(sample.positions), sample.table)
    return pile


def _sums(table: Histograms) -> tuple[NDArray[Any], ...]:
    return table.counts, table.zero, table.inf, table.nan, table.sum_squares


def _writable(table: Histograms) -> Histograms:
    counts, zero, inf, nan = (np.require(c, requirements="W") for c in (table.counts, table.zero, table.inf, table.nan))
    amax, squares = (np.require(c, requirements="W") for c in (table.amax, table.sum_squares))
    return Histograms(counts, zero, inf, nan, amax, squares)


def _stored(connection: Connection, key: Key) -> Pile | None:
    row = connection.execute(_BY_KEY, key._asdict()).one_or_none()
    return None if row is None else pile_of(row)


def _row(key: Key, pile: Pile) -> dict[str, Any]:
    samples = zstandard.ZstdCompressor(level=1).compress(pile.samples.astype("<i8").tobytes())
    return {**key._asdict(), "samples": samples, **packed_columns(pack(pile.table))}


_BY_KEY = select(tables.sample_rollup).where(
    *(column == bindparam(column.name) for column in tables.sample_rollup.primary_key.columns)
)
