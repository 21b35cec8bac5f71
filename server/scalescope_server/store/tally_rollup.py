"""Tallies folded into levels: sums and maxima of one bucket, folded only at the same loss scale.

Rows are the run's parameters or modules in order. What a tally leaves out is not known of it: every row counts the
tallies it rests on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Row

from scalescope_server.store import tables
from scalescope_server.store.columns import Columns, Real, columns_of, folded, packed_columns, unknown
from scalescope_server.store.folding import Key, Place, Sort, counts_of, packed_counts, place_of
from scalescope_server.store.parts import Share
from scalescope_server.store.tables import ALL_RANKS


@dataclass(frozen=True, slots=True, eq=False)
class Pile:
    """Columns by name, each float64 [rows], and how many tallies each row rests on, int64 [rows]."""

    columns: dict[str, Real]
    tallies: NDArray[np.int64]

    @staticmethod
    def empty(rows: int) -> Pile:
        return Pile({}, np.zeros(rows, np.int64))

    def add(self, place: Place, columns: Columns, tallies: int | NDArray[np.int64] = 1) -> None:
        """Fold the rows of ``columns``, which rest on so many tallies, into those at ``place``."""
        for name, values in columns.items():
            if name in self.columns:
                mine = self.columns[name]
                mine[place] = folded(name, mine[place], values)
            else:
                self.columns[name] = unknown(len(self.tallies))
                self.columns[name][place] = values
        self.tallies[place] += tallies


@dataclass(frozen=True, slots=True, eq=False)
class NewTally:
    """A tally just stored: its key at level 0, where the bucket is the step, and the places of its rows.

    ``tallies``: as how many tallies each row counts, int64 [rows].
    """

    key: Key
    columns: Columns
    positions: NDArray[np.int64]
    tallies: int | NDArray[np.int64] = 1

    def merged(self, share: Share) -> Iterator[NewTally]:
        """What the merge of all ranks takes of it, of which ``share`` is this rank's; nothing where it is none."""
        rows = np.flatnonzero(share.reports)
        if rows.size:
            columns = {name: values[rows] for name, values in self.columns.items()}
            leads = share.leads[rows].astype(np.int64)
            yield NewTally(self.key._replace(rank=ALL_RANKS), columns, self.positions[rows], leads)


def pile_of(row: Row[Any]) -> Pile:
    """The stored pile, which may be added to. ``row`` has the columns of ``tally_rollup``."""
    return Pile(columns_of(row), counts_of(row.tallies, row.rows))


def _piled(tallies: Sequence[NewTally]) -> Pile:
    pile = Pile.empty(max(int(tally.positions.max(initial=-1)) + 1 for tally in tallies))
    for tally in tallies:
        pile.add(place_of(tally.positions), tally.columns, tally.tallies)
    return pile


def _joined(piles: Sequence[Pile]) -> Pile:
    joined = Pile.empty(max(len(pile.tallies) for pile in piles))
    for pile in piles:
        joined.add(slice(0, len(pile.tallies)), pile.columns, pile.tallies)
    return joined


def _columns(pile: Pile) -> dict[str, Any]:
    return {"tallies": packed_counts(pile.tallies), **packed_columns(pile.columns, len(pile.tallies))}


TALLIES = Sort(tables.tally_rollup, _piled, _joined, pile_of, _columns)
