"""Tallies folded into levels: sums and maxima of one bucket, folded only at the same loss scale.

Rows are the run's parameters or modules in order. What a tally leaves out is not known of it: every row counts the
tallies it rests on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Row

from scalescope_server.store import tables
from scalescope_server.store.columns import Columns, Real, folded_all, packed_columns, values_of
from scalescope_server.store.folding import Place, Sort, counts_of, packed_counts


@dataclass(slots=True, eq=False)
class Pile:
    """Columns ``names``: ``values`` float64 [columns, rows]; and how many tallies each row rests on, int64 [rows]."""

    names: tuple[str, ...]
    values: Real
    tallies: NDArray[np.int64]

    @staticmethod
    def empty(rows: int) -> Pile:
        return Pile((), np.empty((0, rows)), np.zeros(rows, np.int64))

    @property
    def columns(self) -> dict[str, Real]:
        return dict(zip(self.names, self.values, strict=True))

    def add(self, place: Place, columns: Columns, tallies: int | NDArray[np.int64] = 1) -> None:
        """Fold the rows of ``columns``, which rest on so many tallies, into those at ``place``."""
        self._take(columns)
        some = [self.names.index(name) for name in columns]
        mine = self.values[some]
        theirs = np.array(list(columns.values())).reshape(len(some), -1)
        mine[:, place] = folded_all(tuple(columns), mine[:, place], theirs)
        self.values[some] = mine
        self.tallies[place] += tallies

    def grow(self, rows: int) -> None:
        """Have at least so many rows."""
        if rows > len(self.tallies):
            grown = Pile.empty(rows)
            grown.add(slice(0, len(self.tallies)), self.columns, self.tallies)
            self.names, self.values, self.tallies = grown.names, grown.values, grown.tallies

    def _take(self, names: Iterable[str]) -> None:
        """Have columns of these names, where they are new with nothing known."""
        new = tuple(name for name in names if name not in self.names)
        if new:
            self.names += new
            self.values = np.concatenate([self.values, np.full((len(new), len(self.tallies)), np.nan)])


def pile_of(row: Row[Any]) -> Pile:
    """The stored pile, which may be added to. ``row`` has the columns of ``tally_rollup``."""
    return Pile(tuple(row.names), values_of(row), counts_of(row.tallies, row.rows))


def _joined(piles: Sequence[Pile]) -> Pile:
    joined = Pile.empty(max(len(pile.tallies) for pile in piles))
    for pile in piles:
        joined.add(slice(0, len(pile.tallies)), pile.columns, pile.tallies)
    return joined


def _columns(pile: Pile) -> dict[str, Any]:
    return {"tallies": packed_counts(pile.tallies), **packed_columns(pile.columns, len(pile.tallies))}


TALLIES = Sort(tables.tally_rollup, Pile.empty, _joined, pile_of, _columns)
