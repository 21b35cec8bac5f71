"""Updates with all their series, a row for each (segment, rank, step); and the series of all ranks merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, func, select

from scalescope_server.store import tables
from scalescope_server.store.derived import MERGED_SERIES, MISSING
from scalescope_server.store.extract.frontier import Frontier
from scalescope_server.store.extract.tables import Field, Page, Position, Table, fields
from scalescope_server.store.tables import ALL_RANKS, STEP_COLUMNS
from scalescope_server.store.values import FLAG_BITS, FLAG_MASK, stored_value

# What one page takes in at most, and the updates that it spans at most and at least.
CELLS = 65_536
MOST_STEPS, FEWEST_STEPS = 4096, 32

_UPDATE = (*fields("text", "segment"), *fields("integer", "rank", "step"), *fields("real", "at"))
_MERGED = (*fields("text", "segment"), *fields("integer", "step"))

# (step, segment) -> when it was, then the values of its series.
Found = dict[tuple[int, int], list[Any]]


def updates_table(frontier: Frontier) -> Table:
    """Every update of every rank. What was measured of an update that is not stored has no ``at``."""
    columns = [name for name in STEP_COLUMNS if name in frontier.series]
    own = [name for name in frontier.series if name not in (*STEP_COLUMNS, *MISSING.values())]
    shown = (*_UPDATE, *_series_fields((*columns, *own), {field.name for field in _UPDATE}))
    return Table(shown, _Reading(frontier, frontier.ranks, columns, own).page)


def merged_table(frontier: Frontier) -> Table:
    """The series of all ranks together, a row for each (segment, step); none where the run has one rank."""
    own = [name for name in frontier.series if name in MERGED_SERIES]
    ranks = (ALL_RANKS,) if frontier.chosen.rank is None and own else ()
    return Table((*_MERGED, *_series_fields(own, set())), _Reading(frontier, ranks, [], own, merged=True).page)


def _series_fields(names: Sequence[str], taken: set[str]) -> tuple[Field, ...]:
    """A series that is called as a column of ours has a name of its own: "series/rank"."""
    known = taken | set(names)
    found = []
    for name in names:
        shown = name
        while shown in taken or (shown != name and shown in known):
            shown = f"series/{shown}"
        found.append(Field(shown, "integer" if name == "skipped" else "real"))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Reads rank by rank, a span of steps at a time. A position is (place of the rank, first step)."""

    frontier: Frontier
    ranks: tuple[int, ...]
    columns: Sequence[str]
    own: Sequence[str]
    merged: bool = False

    def page(self, connection: Connection, position: Position | None) -> Page:
        place, first = position or (0, self.frontier.start)
        if place >= len(self.ranks):
            return Page(self._columns_of({}, 0), None)
        rank, end = self.ranks[place], min(first + self._span, self.frontier.stop)
        found: Found = {}
        if first < end:
            self._add_updates(connection, found, rank, first, end - 1)
            self._add_own(connection, found, rank, first, end - 1)
        step = self._next(connection, rank, end) if first < end and not found else end
        following = self._position(place, step)
        return Page(self._columns_of(found, rank), following, self.frontier.done(following, len(self.ranks)))

    @property
    def _span(self) -> int:
        return min(max(CELLS // (len(self.columns) + len(self.own) + 1), FEWEST_STEPS), MOST_STEPS)

    def _position(self, place: int, step: int | None) -> Position | None:
        if step is not None and step < self.frontier.stop:
            return (place, step)
        return (place + 1, self.frontier.start) if place + 1 < len(self.ranks) else None

    def _add_updates(self, connection: Connection, found: Found, rank: int, first: int, last: int) -> None:
        if self.merged:
            return
        row, places = tables.step.c, [STEP_COLUMNS.index(name) for name in self.columns]
        wanted = select(row.step, row.segment, row.at, row.nonfinite, *(row[name] for name in self.columns))
        query = wanted.where(row.run == self.frontier.run, row.rank == rank, row.step.between(first, last))
        for step, segment, at, nonfinite, *values in connection.execute(query.order_by(row.step, row.segment)):
            if step > self.frontier.update_of(segment, rank):
                continue
            if nonfinite:
                flags = [nonfinite >> (FLAG_BITS * place) & FLAG_MASK for place in places]
                values = [stored_value(value, flag) for value, flag in zip(values, flags, strict=True)]
            found[step, segment] = [at, *values, *[None] * len(self.own)]

    def _add_own(self, connection: Connection, found: Found, rank: int, first: int, last: int) -> None:
        place_of = {self.frontier.series[name]: place for place, name in enumerate(self.own, 1 + len(self.columns))}
        if not place_of:
            return
        asked = {"of_series": list(place_of), "of_rank": rank, "start": first, "end": last}
        empty: list[Any] = [None] * (1 + len(self.columns) + len(self.own))
        ends = {
            segment: last if self.merged else self.frontier.step_of(segment, rank) for segment in self.frontier.segments
        }
        for series, step, segment, value, flag in connection.execute(_VALUES, asked).all():
            if step > ends.get(segment, -1):
                continue
            row = found.get((step, segment))
            if row is None:
                row = found[step, segment] = empty.copy()
            row[place_of[series]] = value if not flag else stored_value(value, flag)

    def _next(self, connection: Connection, rank: int, beyond: int) -> int | None:
        """The next step of that rank that is stored: a run may have gaps of millions."""
        asked = {"of_run": self.frontier.run, "of_rank": rank, "beyond": beyond}
        nearest = [connection.execute(query, asked).scalar_one() for query in (_NEXT_UPDATE, _NEXT_VALUE)]
        return min((step for step in nearest if step is not None), default=None)

    def _columns_of(self, found: Found, rank: int) -> list[list[Any]]:
        segments = self.frontier.segments
        keys = [key for key in sorted(found) if key[1] in segments]
        at, *values = ([found[key][place] for key in keys] for place in range(1 + len(self.columns) + len(self.own)))
        ids, steps = [segments[segment] for _, segment in keys], [step for step, _ in keys]
        return [ids, steps, *values] if self.merged else [ids, [rank] * len(keys), steps, at, *values]


_scalar, _step = tables.scalar.c, tables.step.c
_VALUES = (
    select(_scalar.series, _scalar.step, _scalar.segment, _scalar.value, _scalar.flag)
    .where(_scalar.series.in_(bindparam("of_series", expanding=True)), _scalar.rank == bindparam("of_rank"))
    .where(_scalar.step.between(bindparam("start"), bindparam("end")))
)
_NEXT_UPDATE = select(func.min(_step.step)).where(
    _step.run == bindparam("of_run"), _step.rank == bindparam("of_rank"), _step.step >= bindparam("beyond")
)
# A look into the index for each series.
_of_series = (
    select(func.min(_scalar.step))
    .where(_scalar.series == tables.series.c.key, _scalar.rank == bindparam("of_rank"))
    .where(_scalar.step >= bindparam("beyond"))
    .correlate(tables.series)
    .scalar_subquery()
)
_NEXT_VALUE = select(func.min(_of_series)).where(tables.series.c.run == bindparam("of_run"))
