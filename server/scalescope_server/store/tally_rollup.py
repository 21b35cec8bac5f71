"""Tallies folded into levels: sums and maxima of one bucket, folded only at the same loss scale.

Rows are the run's parameters or modules in order. What a tally leaves out is not known of it: every row counts the
tallies it rests on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Row

from scalescope_server.store import tables
from scalescope_server.store.columns import Columns, Real, folded_all, packed_columns, values_of
from scalescope_server.store.folding import Key, Place, Sort, counts_of, packed_counts, place_of
from scalescope_server.store.parts import Share
from scalescope_server.store.tables import ALL_RANKS


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

    def _take(self, names: Iterable[str]) -> None:
        """Have columns of these names, where they are new with nothing known."""
        new = tuple(name for name in names if name not in self.names)
        if new:
            self.names += new
            self.values = np.concatenate([self.values, np.full((len(new), len(self.tallies)), np.nan)])


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
    return Pile(tuple(row.names), values_of(row), counts_of(row.tallies, row.rows))


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
