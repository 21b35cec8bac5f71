"""Samples folded into levels: histograms of one bucket, added up only at the same loss scale.

Rows are the run's parameters in order. A parameter that joins later, or that a sample leaves out, has a row of
zeros and rests on fewer samples: every row counts its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.exponents import Histograms
from scalescope.packing import PackedHistograms, pack, unpack
from sqlalchemy import Connection, Row

from scalescope_server.store import tables
from scalescope_server.store.folding import Key, Place, add_records, counts_of, packed_counts, place_of
from scalescope_server.store.parts import Share
from scalescope_server.store.tables import ALL_RANKS


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
    """A sample just stored: its key at level 0, where the bucket is the step, and the places of its rows.

    ``samples``: as how many samples each row counts, int64 [rows].
    """

    key: Key
    table: Histograms
    positions: NDArray[np.int64]
    samples: int | NDArray[np.int64] = 1

    def merged(self, share: Share) -> Iterator[NewSample]:
        """What the merge of all ranks takes of it, of which ``share`` is this rank's; nothing where it is none."""
        rows = np.flatnonzero(share.reports)
        if rows.size:
            table = self.table if rows.size == self.table.rows else self.table.take(rows)
            leads = share.leads[rows].astype(np.int64)
            yield NewSample(self.key._replace(rank=ALL_RANKS), table, self.positions[rows], leads)


def add_samples(connection: Connection, new: Sequence[NewSample], levels: int) -> None:
    """Add samples, each told once, to the stored levels 1 to ``levels``."""
    add_records(connection, tables.sample_rollup, new, levels, _folded)


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
    return Pile(_writable(unpack(packed_of(row))), counts_of(row.samples, row.rows))


def _folded(row: Row[Any] | None, samples: Sequence[NewSample]) -> dict[str, Any]:
    pile = _piled(None if row is None else pile_of(row), samples)
    return {"samples": packed_counts(pile.samples), **packed_columns(pack(pile.table))}


def _piled(stored: Pile | None, samples: Sequence[NewSample]) -> Pile:
    rows = max(int(sample.positions.max(initial=-1)) + 1 for sample in samples)
    if stored is not None and stored.table.rows >= rows:
        pile = stored
    else:
        pile = Pile.empty(rows)
        if stored is not None:
            pile.add(slice(0, stored.table.rows), stored.table, stored.samples)
    for sample in samples:
        pile.add(place_of(sample.positions), sample.table, sample.samples)
    return pile


def _sums(table: Histograms) -> tuple[NDArray[Any], ...]:
    return table.counts, table.zero, table.inf, table.nan, table.sum_squares


def _writable(table: Histograms) -> Histograms:
    counts, zero, inf, nan = (np.require(c, requirements="W") for c in (table.counts, table.zero, table.inf, table.nan))
    amax, squares = (np.require(c, requirements="W") for c in (table.amax, table.sum_squares))
    return Histograms(counts, zero, inf, nan, amax, squares)
