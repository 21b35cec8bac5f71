"""Samples, tallies and reference probes: a row for each parameter or module of each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.exponents import MIN_EXPONENT
from scalescope.numerics.tallies import MODULE_TALLIES, PARAMETER_TALLIES, PROBE_TALLIES
from scalescope.packing import unpack
from scalescope.wire import SampleKind, Subject
from sqlalchemy import Connection, Row, Select, select, tuple_

from scalescope_server.store import tables
from scalescope_server.store.columns import columns_of
from scalescope_server.store.extract.frontier import Frontier
from scalescope_server.store.extract.tables import Page, Position, Table, fields
from scalescope_server.store.folding import positions_of
from scalescope_server.store.layouts import subject_of
from scalescope_server.store.sample_rollup import packed_of
from scalescope_server.store.values import scale_of

# Rows of a page, of a few dozen numbers each; a record of all parameters is read whole.
ROWS = 8192

_CALLER = (*fields("text", "segment"), *fields("integer", "rank", "step"), *fields("real", "at"))
_SAMPLE = (
    *_CALLER,
    *fields("text", "kind", "reason"),
    *fields("real", "scale"),
    *fields("integer", "micro_batches"),
    *fields("text", "name"),
    *fields("integer", "zero", "inf", "nan"),
    *fields("real", "amax", "sum_squares"),
    *fields("integer", "first_exponent"),
    *fields("counts", "counts"),
)
_TALLIES = tuple(dict.fromkeys((*PARAMETER_TALLIES, *MODULE_TALLIES)))
_TALLY = (
    *_CALLER,
    *fields("text", "subject", "reason"),
    *fields("real", "scale"),
    *fields("text", "name"),
    *fields("real", *_TALLIES),
)
_PROBES = tuple(PROBE_TALLIES)
_PROBE = (*_CALLER, *fields("json", "data"), *fields("text", "name"), *fields("real", *_PROBES))

Columns = list[list[Any]]


def samples_table(frontier: Frontier) -> Table:
    """Every exponent histogram: ``counts`` from ``first_exponent`` on, exponents beyond are not in use."""
    kinds = [kind for kind in get_args(SampleKind) if frontier.chosen.kinds is None or kind in frontier.chosen.kinds]
    query = select(tables.sample).where(tables.sample.c.key <= frontier.keys["sample"])

    def rows(stored: Row[Any]) -> Columns:
        picked, names = _picked(frontier, subject_of(stored.kind), stored)
        table = unpack(packed_of(stored), picked)
        first = stored.low - MIN_EXPONENT
        numbers = (table.zero, table.inf, table.nan, table.amax, table.sum_squares)
        told = (stored.kind, stored.reason, scale_of(stored.scale, stored.scale_flag), stored.micro_batches)
        counts = table.counts[:, first : first + stored.bins].tolist()
        columns = [names, *(column.tolist() for column in numbers), [stored.low] * len(names), counts]
        return _repeated(frontier, stored, told, len(names)) + columns

    reading = _Reading(frontier, query, tuple(product(kinds, frontier.ranks)), rows, len(_SAMPLE))
    return Table(_SAMPLE, reading.page)


def tallies_table(frontier: Frontier) -> Table:
    """Every tally. A column that a record does not have is left out; NaN: not known."""
    query = select(tables.tally).where(tables.tally.c.key <= frontier.keys["tally"])

    def rows(stored: Row[Any]) -> Columns:
        picked, names = _picked(frontier, stored.kind, stored)
        told = (stored.kind, stored.reason, scale_of(stored.scale, stored.scale_flag))
        return [*_repeated(frontier, stored, told, len(names)), names, *_values(stored, _TALLIES, picked)]

    pairs = tuple(product(get_args(Subject), frontier.ranks))
    return Table(_TALLY, _Reading(frontier, query, pairs, rows, len(_TALLY)).page)


def probes_table(frontier: Frontier) -> Table:
    """Every reference probe; one that compared nothing is told by a row without a name."""
    query = select(tables.tally, tables.probe.c.data).join(tables.probe, tables.probe.c.tally == tables.tally.c.key)
    query = query.where(tables.tally.c.key <= frontier.keys["tally"])

    def rows(stored: Row[Any]) -> Columns:
        picked, names = _picked(frontier, "parameter", stored)
        if not stored.rows:
            return [[value] for value in (*_place(frontier, stored), stored.data, None, *[None] * len(_PROBES))]
        return [*_repeated(frontier, stored, (stored.data,), len(names)), names, *_values(stored, _PROBES, picked)]

    pairs = tuple(product(("probe",), frontier.ranks))
    return Table(_PROBE, _Reading(frontier, query, pairs, rows, len(_PROBE)).page)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Reads ``query`` for each (kind, rank) in the order of steps. A position is (place of the pair, step, key)."""

    frontier: Frontier
    query: Select[Any]
    pairs: Sequence[tuple[str, int]]
    rows: Callable[[Row[Any]], Columns]
    width: int

    def page(self, connection: Connection, position: Position | None) -> Page:
        place, step, key = position or (0, self.frontier.start, 0)
        columns: Columns = [[] for _ in range(self.width)]
        if place >= len(self.pairs):
            return Page(columns, None)
        found = self._found(connection, *self.pairs[place], (step, key))
        for stored in found:
            for column, more in zip(columns, self.rows(stored), strict=True):
                column.extend(more)
        following: Position | None = (place + 1, self.frontier.start, 0) if place + 1 < len(self.pairs) else None
        if len(found) == self._records:
            following = (place, found[-1].step, found[-1].key)
        return Page(columns, following, self.frontier.done(following, len(self.pairs)))

    def _found(self, connection: Connection, kind: str, rank: int, beyond: tuple[int, int]) -> Sequence[Row[Any]]:
        row = self.query.selected_columns
        query = self.query.where(row.run == self.frontier.run, row.kind == kind, row.rank == rank)
        query = query.where(row.step >= beyond[0], row.step < self.frontier.stop, tuple_(row.step, row.key) > beyond)
        return connection.execute(query.order_by(row.step, row.key).limit(self._records)).all()

    @property
    def _records(self) -> int:
        """How many of a page, so that their rows are not too many."""
        most = max(len(self.frontier.parameters), len(self.frontier.modules), 1)
        rows = most if self.frontier.chosen.names is None else min(len(self.frontier.chosen.names), most)
        return min(max(ROWS // max(rows, 1), 1), 256)


def _picked(frontier: Frontier, subject: Subject, stored: Row[Any]) -> tuple[NDArray[np.int64], list[str]]:
    """The rows of a record that are wanted, and the name of each."""
    known = frontier.parameters if subject == "parameter" else frontier.modules
    names = [known[position] for position in positions_of(stored.positions, stored.rows).tolist()]
    wanted = frontier.chosen.names
    picked = [row for row, name in enumerate(names) if wanted is None or name in wanted]
    return np.array(picked, np.int64), [names[row] for row in picked]


def _place(frontier: Frontier, stored: Row[Any]) -> tuple[Any, ...]:
    return frontier.segments.get(stored.segment), stored.rank, stored.step, stored.at


def _repeated(frontier: Frontier, stored: Row[Any], told: Sequence[Any], rows: int) -> Columns:
    """What a record says of itself, in each of its rows."""
    return [[value] * rows for value in (*_place(frontier, stored), *told)]


def _values(stored: Row[Any], names: Sequence[str], picked: NDArray[np.int64]) -> Columns:
    columns = columns_of(stored)
    absent: list[Any] = [None] * len(picked)
    return [columns[name][picked].tolist() if name in columns else absent for name in names]
