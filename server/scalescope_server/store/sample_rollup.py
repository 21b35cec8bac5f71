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
from scalescope.packing import PackedHistograms, Trimmed, pack_trimmed, unpack_trimmed
from sqlalchemy import Row

from scalescope_server.store import tables
from scalescope_server.store.folding import Key, Place, Sort, counts_of, packed_counts, place_of
from scalescope_server.store.parts import Share
from scalescope_server.store.tables import ALL_RANKS


@dataclass(slots=True, eq=False)
class Pile:
    """Histograms [parameters], counts in int64, and how many samples each row rests on, int64 [parameters]."""

    kept: Trimmed
    samples: NDArray[np.int64]

    @staticmethod
    def empty(rows: int) -> Pile:
        return Pile(Trimmed.empty(rows), np.zeros(rows, np.int64))

    @property
    def table(self) -> Histograms:
        return self.kept.whole()

    def add(self, place: Place, table: Trimmed, samples: int | NDArray[np.int64] = 1) -> None:
        """Add the rows of ``table``, which rest on so many samples, to those at ``place``."""
        self.kept = kept = self.kept.widened(table.low, table.end)
        first = table.low - kept.low
        kept.counts[place, first : first + table.counts.shape[1]] += table.counts
        kept.classes[:, place] += table.classes
        kept.sum_squares[place] += table.sum_squares
        kept.amax[place] = np.maximum(kept.amax[place], table.amax)
        self.samples[place] += samples


@dataclass(frozen=True, slots=True, eq=False)
class NewSample:
    """A sample just stored: its key at level 0, where the bucket is the step, and the places of its rows.

    ``samples``: as how many samples each row counts, int64 [rows].
    """

    key: Key
    table: Trimmed
    positions: NDArray[np.int64]
    samples: int | NDArray[np.int64] = 1

    def merged(self, share: Share) -> Iterator[NewSample]:
        """What the merge of all ranks takes of it, of which ``share`` is this rank's; nothing where it is none."""
        rows = np.flatnonzero(share.reports)
        if rows.size:
            table = self.table if rows.size == self.table.rows else self.table.take(rows)
            leads = share.leads[rows].astype(np.int64)
            yield NewSample(self.key._replace(rank=ALL_RANKS), table, self.positions[rows], leads)


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
    return Pile(unpack_trimmed(packed_of(row)), counts_of(row.samples, row.rows))


def _piled(samples: Sequence[NewSample]) -> Pile:
    pile = Pile.empty(max(int(sample.positions.max(initial=-1)) + 1 for sample in samples))
    for sample in samples:
        pile.add(place_of(sample.positions), sample.table, sample.samples)
    return pile


def _joined(piles: Sequence[Pile]) -> Pile:
    joined = Pile.empty(max(pile.kept.rows for pile in piles))
    for pile in piles:
        joined.add(slice(0, pile.kept.rows), pile.kept, pile.samples)
    return joined


def _columns(pile: Pile) -> dict[str, Any]:
    return {"samples": packed_counts(pile.samples), **packed_columns(pack_trimmed(pile.kept))}


SAMPLES = Sort(tables.sample_rollup, _piled, _joined, pile_of, _columns)
