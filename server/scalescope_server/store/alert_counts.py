"""How the alerts of each rule stand, counted."""

from __future__ import annotations

from msgspec import Struct
from sqlalchemy import Connection, func, or_, select

from scalescope_server.store import tables
from scalescope_server.store.alerts import QUIET


class AlertCount(Struct, frozen=True, kw_only=True):
    """How many alerts of ``rule`` are in a state. ``rule`` None: of rules that are deleted.

    ``open``: their newest firing is not over.
    """

    rule: int | None
    state: str
    open: bool
    count: int


def count_alerts(connection: Connection) -> list[AlertCount]:
    """All but those that are quiet."""
    row = tables.alert.c
    query = (
        select(row.rule, row.state, row.is_open, func.count().label("many"))
        .join_from(tables.alert, tables.run, tables.run.c.key == row.run)
        .where(or_(row.state != QUIET, row.is_open), ~tables.run.c.doomed)
        .group_by(row.rule, row.state, row.is_open)
        .order_by(row.rule, row.state, row.is_open)
    )
    return [
        AlertCount(rule=found.rule, state=found.state, open=found.is_open, count=found.many)
        for found in connection.execute(query)
    ]
