"""How far a run had come when its extract began: what comes later is left out, so all tables tell of one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, Row, Table, func, select

from scalescope_server.store import tables
from scalescope_server.store.extract.tables import Chosen, Position


class Reached(NamedTuple):
    """The last update, and the last sample or tally, of one rank of one segment; -1 before the first."""

    update: int
    sample: int


@dataclass(frozen=True, slots=True)
class Frontier:
    """The run as it stood, and what of it was asked for.

    Attributes:
        run: its key inside.
        stop: one more than its highest step, or what was asked for.
        segments: key -> id, in the order of their beginnings.
        reached: (segment, rank) -> how far it had come.
        series: name -> key.
        parameters, modules: their names by position.
        keys: table -> the last key it had given.
    """

    run: int
    start: int
    stop: int
    segments: Mapping[int, str]
    reached: Mapping[tuple[int, int], Reached]
    series: Mapping[str, int]
    parameters: tuple[str, ...]
    modules: tuple[str, ...]
    keys: Mapping[str, int]
    chosen: Chosen

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those whose rows are read."""
        known = sorted({rank for _, rank in self.reached})
        return tuple(rank for rank in known if self.chosen.rank in (None, rank))

    def done(self, following: Position | None, places: int) -> float:
        """How much of a table is read that goes through the steps once for each of so many ``places``."""
        if following is None:
            return 1.0
        place, step, *_ = following
        return (place + (step - self.start) / max(self.stop - self.start, 1)) / places

    def update_of(self, segment: int, rank: int) -> int:
        """The last update of that rank that is read."""
        return self.reached.get((segment, rank), Reached(-1, -1)).update

    def step_of(self, segment: int, rank: int) -> int:
        """The last step of that rank of which anything is read."""
        return max(self.reached.get((segment, rank), Reached(-1, -1)))


def frontier_of(connection: Connection, run: Row[tuple[object, ...]], chosen: Chosen) -> Frontier:
    """Where the row of ``run`` stands."""
    stop = run.length if chosen.stop is None else min(chosen.stop, run.length)
    return Frontier(
        run=run.key,
        start=max(chosen.start or 0, 0),
        stop=stop,
        segments=_segments(connection, run.key),
        reached=_reached(connection, run.key),
        series=_series(connection, run.key, chosen),
        parameters=_names(connection, tables.parameter, run.key),
        modules=_names(connection, tables.module, run.key),
        keys={table.name: _last_key(connection, table) for table in _NUMBERED},
        chosen=chosen,
    )


def _segments(connection: Connection, run: int) -> dict[int, str]:
    row = tables.segment.c
    found = connection.execute(select(row.key, row.id).where(row.run == run).order_by(row.ordinal))
    return {segment.key: segment.id for segment in found}


def _reached(connection: Connection, run: int) -> dict[tuple[int, int], Reached]:
    row = tables.ledger.c
    query = (
        select(row.segment, row.rank, row.highest_step, row.highest_sample)
        .join(tables.segment, tables.segment.c.key == row.segment)
        .where(tables.segment.c.run == run)
    )
    return {(found.segment, found.rank): Reached(*found[2:]) for found in connection.execute(query)}


def _series(connection: Connection, run: int, chosen: Chosen) -> dict[str, int]:
    row = tables.series.c
    found = connection.execute(select(row.name, row.key).where(row.run == run).order_by(row.name))
    return {name: key for name, key in found if chosen.series is None or name in chosen.series}


def _names(connection: Connection, table: Table, run: int) -> tuple[str, ...]:
    found = connection.execute(select(table.c.name).where(table.c.run == run).order_by(table.c.position))
    return tuple(found.scalars())


def _last_key(connection: Connection, table: Table) -> int:
    return int(connection.execute(select(func.max(table.c.key))).scalar_one() or 0)


_NUMBERED = (tables.event, tables.sample, tables.tally, tables.setup)
