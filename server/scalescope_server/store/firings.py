"""When alerts of a run fired, on the axis of its updates."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, Row, Select, and_, bindparam, func, or_, select

from scalescope_server.store import tables

# More than this could not be told apart on a screen: the newest are told.
MAX_FIRINGS = 100


class Firing(Struct, frozen=True, kw_only=True):
    """One firing of the alert of a rule. ``last_step`` None: it is not over. ``culprit``: as it began.

    ``by_time``: it began while no update came, after ``first_step``.
    """

    rule: str
    severity: str
    first_step: int
    last_step: int | None
    culprit: str | None
    by_time: bool = False


def read_firings(connection: Connection, run: int, start: int | None, stop: int | None) -> list[Firing]:
    """The newest of those that fired in the updates ``start`` to ``stop`` (exclusive; None: open), in order.

    What happened while no update came is at the update before. A run without any has no axis, and no firing on it.
    """
    moves, alert = tables.transition.c, tables.alert.c
    first, last, at_update = func.min(moves.step), func.max(moves.step), moves.step.is_not(None)
    ended, last_moved = func.max(moves.key), func.max(moves.key).filter(at_update)
    is_open = and_(alert.is_open, alert.firings == moves.firing)
    query: Select[Any] = (
        select(alert.name, alert.severity, is_open.label("is_open"), func.min(moves.culprit).label("culprit"))
        .add_columns(first.label("first_step"), last.label("last_step"))
        .add_columns(func.min(moves.key).label("began"), func.min(moves.key).filter(at_update).label("first_moved"))
        .add_columns(ended.label("ended"), last_moved.label("last_moved"))
        .join_from(tables.alert, tables.transition, moves.alert == alert.key)
        # Of no firing is number 0.
        .where(alert.run == run, moves.firing > 0)
        .group_by(alert.key, alert.name, alert.severity, alert.is_open, alert.firings, moves.firing)
    )
    # Where those lie that time alone began or ended is only known once they are read.
    if stop is not None:
        query = query.having(or_(first <= stop, first.is_(None)))
    if start is not None:
        query = query.having(or_(last >= start, is_open, last.is_(None), ended > last_moved))
    found = connection.execute(query.order_by(ended.desc()).limit(MAX_FIRINGS)).all()
    newest = connection.execute(_NEWEST, {"of_run": run}).scalar_one_or_none()
    told = [] if newest is None else [_firing(connection, run, row, newest) for row in found]
    inside = [
        firing
        for firing in told
        if (stop is None or firing.first_step < stop)
        and (start is None or firing.last_step is None or firing.last_step >= start)
    ]
    return sorted(inside, key=lambda firing: firing.first_step)


def _firing(connection: Connection, run: int, row: Row[Any], newest: int) -> Firing:
    first, last = row.first_step, row.last_step
    by_time = row.began != row.first_moved
    if by_time:
        # Whatever the trainer's clock says, it began before the update that changed it.
        bound = newest if first is None else max(first - 1, 0)
        first = min(_update_before(connection, run, _when(connection, row.began), newest), bound)
    if not row.is_open and row.ended != row.last_moved:
        last = max(_update_before(connection, run, _when(connection, row.ended), newest), last or 0)
    return Firing(
        rule=row.name,
        severity=row.severity,
        first_step=first,
        last_step=None if row.is_open else max(last, first),
        culprit=row.culprit,
        by_time=by_time,
    )


def _when(connection: Connection, transition: int) -> float:
    row = tables.transition.c
    return float(connection.execute(select(row.at).where(row.key == transition)).scalar_one())


def _update_before(connection: Connection, run: int, at: float, newest: int) -> int:
    """The last update of rank 0 up to the time ``at``, found by halves; the first stored one where all are later."""
    low, high = -1, newest
    while low < high:
        middle = (low + high + 1) // 2
        row = connection.execute(_AT, {"of_run": run, "from_step": middle}).one()
        if row.at <= at:
            low = max(middle, min(row.step, high))
        else:
            high = middle - 1
    return int(connection.execute(_AT, {"of_run": run, "from_step": max(low, 0)}).one().step)


_step = tables.step.c
_OF_RUN = select(_step.step, _step.at).where(_step.run == bindparam("of_run"), _step.rank == 0)
_NEWEST = _OF_RUN.with_only_columns(func.max(_step.step))
_AT = _OF_RUN.where(_step.step >= bindparam("from_step")).order_by(_step.step).limit(1)
