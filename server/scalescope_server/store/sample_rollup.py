"""Samples folded into levels: histograms of one bucket, added up only at the same loss scale.

Rows are the run's parameters in order. A parameter that joins later, or that a sample leaves out, has a row of
zeros and rests on fewer samples: every row counts its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scalescope.packing import PackedHistograms, Trimmed, pack_trimmed, unpack_trimmed
from sqlalchemy import Row

from scalescope_server.store import tables
from scalescope_server.store.folding import Place, Sort, counts_of, packed_counts
from scalescope_server.store.stacks import Stack

# The columns that hold a packed table, as it names them.
HEADER_AND_BODY = ("rows", "low", "bins", "width", "body")


@dataclass(slots=True, eq=False)
class Pile:
    """Histograms [parameters], counts in int64, and how many samples each row rests on, int64 [parameters]."""

    kept: Trimmed
    samples: NDArray[np.int64]

    @staticmethod
    def empty(rows: int) -> Pile:
        return Pile(Trimmed.empty(rows), np.zeros(rows, np.int64))

    def add(self, place: Place, table: Trimmed, samples: int | NDArray[np.int64] = 1) -> None:
        """Add the rows of ``table``, which rest on so many samples, to those at ``place``."""
        self.kept = kept = self.kept.widened(table.low, table.end)
        first = table.low - kept.low
        kept.counts[place, first : first + table.counts.shape[1]] += table.counts
        kept.classes[:, place] += table.classes
        kept.sum_squares[place] += table.sum_squares
        kept.amax[place] = np.maximum(kept.amax[place], table.amax)
        self.samples[place] += samples

    def add_all(self, place: Place, stack: Stack, samples: int | NDArray[np.int64] = 1) -> None:
        """Add the rows of every sample of ``stack``, each of which rests on so many samples, to those at ``place``."""
        self.kept = kept = self.kept.widened(stack.low, stack.end)
        first = stack.low - kept.low
        # Whole numbers below 2**53: many samples of the largest tensors.
        counts = stack.counts.sum(axis=0).astype(np.int64)
        kept.counts[place, first : first + counts.shape[1]] += counts
        kept.classes[:, place] += stack.classes.sum(axis=0)
        # In their order: of sums of floats it is a part.
        for squares in stack.sum_squares:
            kept.sum_squares[place] += squares
        kept.amax[place] = np.maximum(kept.amax[place], stack.amax.max(axis=0))
        self.samples[place] += samples * np.int64(len(stack.amax))

    def grow(self, rows: int) -> None:
        """Have at least so many rows."""
        if rows > self.kept.rows:
            grown = Pile.empty(rows)
            grown.add(slice(0, self.kept.rows), self.kept, self.samples)
            self.kept, self.samples = grown.kept, grown.samples


def packed_columns(packed: PackedHistograms) -> dict[str, Any]:
    """A packed table as the columns that hold it."""
    return {name: getattr(packed, name) for name in HEADER_AND_BODY}


def packed_of(row: Row[Any]) -> PackedHistograms:
    """The packed table that a row's columns hold."""
    return PackedHistograms(row.rows, row.low, row.bins, row.width, row.body)


def pile_of(row: Row[Any]) -> Pile:
    """The stored pile. ``row`` has the columns of ``sample_rollup``."""
    return Pile(unpack_trimmed(packed_of(row)), counts_of(row.samples, row.rows))


def _joined(piles: Sequence[Pile]) -> Pile:
    joined = Pile.empty(max(pile.kept.rows for pile in piles))
    for pile in piles:
        joined.add(slice(0, pile.kept.rows), pile.kept, pile.samples)
    return joined


def _columns(pile: Pile) -> dict[str, Any]:
    return {"samples": packed_counts(pile.samples), **packed_columns(pack_trimmed(pile.kept))}


SAMPLES = Sort(tables.sample_rollup, Pile.empty, _joined, pile_of, _columns)
