"""Tallies folded into levels: sums and maxima of one bucket, folded only at the same loss scale.

Rows are the run's parameters or modules in order. What a tally leaves out is not known of it: every row counts the
tallies it rests on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, bindparam, select

from scalescope_server.store import tables
from scalescope_server.store.columns import Columns, Real, columns_of, folded, packed_columns, unknown
from scalescope_server.store.folding import Key, Place, by_bucket, counts_of, packed_counts, place_of
from scalescope_server.store.upsert import replace_rows


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
            mine = self.columns.setdefault(name, unknown(len(self.tallies)))
            mine[place] = folded(name, mine[place], values)
        self.tallies[place] += tallies


@dataclass(frozen=True, slots=True, eq=False)
class NewTally:
    """A tally just stored: its key at level 0, where the bucket is the step, and the places of its rows."""

    key: Key
    columns: Columns
    positions: NDArray[np.int64]


def add_tallies(connection: Connection, new: Sequence[NewTally], levels: int) -> None:
    """Add tallies, each told once, to the stored levels 1 to ``levels``."""
    for level in range(1, levels + 1):
        rows = (_row(key, _piled(_stored(connection, key), told)) for key, told in by_bucket(new, level).items())
        replace_rows(connection, tables.tally_rollup, rows)


def pile_of(row: Row[Any]) -> Pile:
    """The stored pile, which may be added to. ``row`` has the columns of ``tally_rollup``."""
    return Pile(columns_of(row), counts_of(row.tallies, row.rows))


def _piled(stored: Pile | None, tallies: Sequence[NewTally]) -> Pile:
    rows = max(int(tally.positions.max(initial=-1)) + 1 for tally in tallies)
    if stored is not None and len(stored.tallies) >= rows:
        pile = stored
    else:
        pile = Pile.empty(rows)
        if stored is not None:
            pile.add(slice(0, len(stored.tallies)), stored.columns, stored.tallies)
    for tally in tallies:
        pile.add(place_of(tally.positions), tally.columns)
    return pile


def _stored(connection: Connection, key: Key) -> Pile | None:
    row = connection.execute(_BY_KEY, key._asdict()).one_or_none()
    return None if row is None else pile_of(row)


def _row(key: Key, pile: Pile) -> dict[str, Any]:
    return {**key._asdict(), "tallies": packed_counts(pile.tallies), **packed_columns(pile.columns, len(pile.tallies))}


_BY_KEY = select(tables.tally_rollup).where(
    *(column == bindparam(column.name) for column in tables.tally_rollup.primary_key.columns)
)
