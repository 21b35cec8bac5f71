"""When alerts of a run fired, on the axis of its updates."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, Select, and_, func, or_, select

from scalescope_server.store import tables

# More than this could not be told apart on a screen: the newest are told.
MAX_FIRINGS = 100


class Firing(Struct, frozen=True, kw_only=True):
    """One firing of the alert of a rule. ``last_step`` None: it is not over. ``culprit``: as it began."""

    rule: str
    severity: str
    first_step: int
    last_step: int | None
    culprit: str | None


def read_firings(connection: Connection, run: int, start: int | None, stop: int | None) -> list[Firing]:
    """The newest of those that fired in the updates ``start`` to ``stop`` (exclusive; None: open), in order.

    A firing that began while no update came is at the update before.
    """
    moves, alert = tables.transition.c, tables.alert.c
    last = func.max(moves.step)
    is_open = and_(alert.is_open, alert.firings == moves.firing)
    query: Select[Any] = (
        select(alert.name, alert.severity, is_open.label("is_open"), func.min(moves.step).label("first_step"))
        .add_columns(last.label("last_step"), func.min(moves.culprit).label("culprit"))
        .join_from(tables.alert, tables.transition, moves.alert == alert.key)
        # Of no firing is number 0.
        .where(alert.run == run, moves.step.is_not(None), moves.firing > 0)
        .group_by(alert.key, alert.name, alert.severity, alert.is_open, alert.firings, moves.firing)
    )
    if stop is not None:
        query = query.having(func.min(moves.step) < stop)
    if start is not None:
        query = query.having(or_(last >= start, is_open))
    found = connection.execute(query.order_by(func.max(moves.key).desc()).limit(MAX_FIRINGS)).all()
    told = [
        Firing(
            rule=row.name,
            severity=row.severity,
            first_step=row.first_step,
            last_step=None if row.is_open else row.last_step,
            culprit=row.culprit,
        )
        for row in found
    ]
    return sorted(told, key=lambda firing: firing.first_step)
