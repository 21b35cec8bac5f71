"""Events, facts of windows, set-ups and findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, select, tuple_

from scalescope_server.store import tables
from scalescope_server.store.extract.frontier import Frontier
from scalescope_server.store.extract.tables import Page, Position, Table, columns_of_rows, fields
from scalescope_server.store.history import read_findings

# Rows of a page: each holds a JSON object.
ROWS = 1000

_CALLER = (*fields("text", "segment"), *fields("integer", "rank"))
_EVENT = (*_CALLER, *fields("integer", "step"), *fields("real", "at"), *fields("text", "kind"), *fields("json", "data"))
_WINDOW = (*_CALLER, *fields("integer", "first_step", "last_step"), *fields("json", "facts"))
_SETUP = (*_CALLER, *fields("integer", "step"), *fields("real", "at"), *fields("json", "data"))
_FINDING = (
    *fields("text", "code", "subject", "severity", "sentence"),
    *fields("json", "evidence"),
    *fields("text", "advice"),
    *fields("integer", "first_step", "last_step"),
)


def events_table(frontier: Frontier) -> Table:
    """Every event of every rank, in the order of their steps."""
    row = tables.event.c
    kinds = () if frontier.chosen.kinds is None else (row.kind.in_(frontier.chosen.kinds),)
    # A single event may lie far ahead of all updates.
    within = row.step >= frontier.start, *(() if frontier.chosen.stop is None else (row.step < frontier.chosen.stop,))
    query = select(tables.event).where(row.run == frontier.run, row.key <= frontier.keys["event"], *within, *kinds)

    def values(stored: Row[Any]) -> tuple[Any, ...]:
        segment = frontier.segments.get(stored.segment)
        return segment, stored.rank, stored.step, stored.at, stored.kind, stored.data

    return Table(_EVENT, _paged(_of_rank(frontier, query, row.rank), (row.step, row.key), values, len(_EVENT)))


def windows_table(frontier: Frontier) -> Table:
    """The facts of updates' windows; neighbours that are alike are one row."""
    row = tables.window.c
    query = select(tables.window).where(row.run == frontier.run, row.rank.in_(frontier.ranks))
    query = query.where(row.last_step >= frontier.start, row.first_step < frontier.stop)

    def values(stored: Row[Any]) -> tuple[Any, ...] | None:
        last = min(stored.last_step, frontier.update_of(stored.segment, stored.rank))
        if last < stored.first_step:
            return None
        return frontier.segments[stored.segment], stored.rank, stored.first_step, last, stored.data

    return Table(_WINDOW, _paged(query, (row.rank, row.first_step, row.segment), values, len(_WINDOW)))


def setups_table(frontier: Frontier) -> Table:
    """What held of the training from each step on."""
    row = tables.setup.c
    query = select(tables.setup).where(row.run == frontier.run, row.key <= frontier.keys["setup"])
    query = _of_rank(frontier, query, row.rank)

    def values(stored: Row[Any]) -> tuple[Any, ...]:
        return frontier.segments.get(stored.segment), stored.rank, stored.step, stored.at, stored.data

    return Table(_SETUP, _paged(query, (row.rank, row.step, row.key), values, len(_SETUP)))


def findings_table(frontier: Frontier) -> Table:
    """The named causes, as they stand when they are read."""

    def read(connection: Connection, _: Position | None) -> Page:
        found = read_findings(connection, frontier.run)
        rows = [[getattr(finding, field.name) for field in _FINDING] for finding in found]
        return Page(columns_of_rows(rows, len(_FINDING)), None)

    return Table(_FINDING, read)


def _of_rank(frontier: Frontier, query: Select[Any], rank: ColumnElement[int]) -> Select[Any]:
    return query if frontier.chosen.rank is None else query.where(rank == frontier.chosen.rank)


def _paged(
    query: Select[Any],
    key: tuple[ColumnElement[int], ...],
    values: Callable[[Row[Any]], tuple[Any, ...] | None],
    width: int,
) -> Callable[[Connection, Position | None], Page]:
    """Reads ``query`` in the order of ``key``, which no two rows share; ``values`` None leaves a row out."""

    def read(connection: Connection, position: Position | None) -> Page:
        beyond = query if position is None else query.where(tuple_(*key) > position)
        found = connection.execute(beyond.order_by(*key).limit(ROWS)).all()
        rows = [given for stored in found if (given := values(stored)) is not None]
        last = tuple(getattr(found[-1], column.name) for column in key) if len(found) == ROWS else None
        return Page(columns_of_rows(rows, width), last)

    return read
