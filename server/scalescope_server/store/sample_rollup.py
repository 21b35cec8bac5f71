"""Samples folded into levels: histograms of one bucket, added up only at the same loss scale.

Rows are the run's parameters in order. A parameter that joins later, or that a sample leaves out, has a row of
zeros and rests on fewer samples: every row counts its own.
"""

from __future__ import annotations

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

    def padded(self, rows: int) -> Pile:
        """With rows of zeros at the end, ``rows`` in all (at least as many as there are)."""
        lacking = rows - self.table.rows
        if not lacking:
            return self
        table = Histograms.stack([self.table, Histograms.empty(lacking)])
        return Pile(table, np.concatenate([self.samples, np.zeros(lacking, np.int64)]))

    def plus(self, other: Pile) -> Pile:
        rows = max(self.table.rows, other.table.rows)
        mine, theirs = self.padded(rows), other.padded(rows)
        return Pile(mine.table.merge(theirs.table), mine.samples + theirs.samples)


@dataclass(frozen=True, slots=True, eq=False)
class NewSample:
    """A sample just stored: its key at level 0, where the bucket is the step, and its rows in parameter order."""

    key: Key
    pile: Pile


def spread(table: Histograms, positions: NDArray[np.int64]) -> Pile:
    """The rows of ``table`` moved to their places among the run's parameters."""
    rows = int(positions.max(initial=-1)) + 1
    samples = np.zeros(rows, np.int64)
    samples[positions] = 1
    if np.array_equal(positions, np.arange(rows)):
        return Pile(table, samples)
    # Row -1, the one of zeros at the end, stands for every parameter that the sample leaves out.
    source = np.full(rows, -1)
    source[positions] = np.arange(table.rows)
    return Pile(Histograms.stack([table, Histograms.empty(1)]).take(source), samples)


def add_samples(connection: Connection, new: list[NewSample], levels: int) -> None:
    """Add samples, each told once, to the stored levels 1 to ``levels``."""
    piles: dict[Key, Pile] = {}
    for level in range(1, levels + 1):
        for sample in new:
            key = sample.key._replace(level=level, bucket=sample.key.bucket // bucket_size(level))
            piles[key] = piles[key].plus(sample.pile) if key in piles else sample.pile
    rows = [_row(key, _stored(connection, key, pile)) for key, pile in piles.items()]
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
    """The stored pile. ``row`` has the columns of ``sample_rollup``."""
    samples = np.frombuffer(decompress(row.samples, expected=8 * row.rows), "<i8")
    return Pile(unpack(packed_of(row)), samples)


def _stored(connection: Connection, key: Key, pile: Pile) -> Pile:
    row = connection.execute(_BY_KEY, key._asdict()).one_or_none()
    return pile if row is None else pile_of(row).plus(pile)


def _row(key: Key, pile: Pile) -> dict[str, Any]:
    samples = zstandard.ZstdCompressor(level=1).compress(pile.samples.astype("<i8").tobytes())
    return {**key._asdict(), "samples": samples, **packed_columns(pack(pile.table))}


_BY_KEY = select(tables.sample_rollup).where(
    *(column == bindparam(column.name) for column in tables.sample_rollup.primary_key.columns)
)
