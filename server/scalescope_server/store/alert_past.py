"""What an alert has been through and what was told of it, page by page, the newest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, select

from scalescope_server.store import tables
from scalescope_server.store.alert_records import DeliveryLine, TransitionRow
from scalescope_server.store.alerts import transition_of
from scalescope_server.store.cursors import packed_cursor, unpacked_cursor
from scalescope_server.store.errors import NoAlert

MAX_PAST = 200


def list_transitions(
    connection: Connection, alert: int, *, limit: int, cursor: str | None
) -> tuple[list[TransitionRow], str | None]:
    """The changes of an alert's state, and the cursor of those before; ``limit`` is clamped.

    Raises:
        NoAlert: for an id that no alert has.
        BadCursor: for a cursor that did not come from here.
    """
    _check(connection, alert)
    row, limit = tables.transition.c, min(max(limit, 1), MAX_PAST)
    query = select(tables.transition).where(row.alert == alert)
    if cursor is not None:
        query = query.where(row.key < unpacked_cursor(cursor, tuple[float, int])[1])
    found = connection.execute(query.order_by(row.key.desc()).limit(limit + 1)).all()
    page = found[:limit]
    return [transition_of(stored) for stored in page], _following(page) if len(found) > limit else None


def list_deliveries(
    connection: Connection, alert: int, *, limit: int, cursor: str | None
) -> tuple[list[DeliveryLine], str | None]:
    """What was told of an alert on which channel, and the cursor of what was told before. As above."""
    _check(connection, alert)
    row, limit = tables.delivery.c, min(max(limit, 1), MAX_PAST)
    chosen = [row[name] for name in DeliveryLine.__struct_fields__]
    query = select(row.key, *chosen).where(row.alert == alert)
    if cursor is not None:
        query = query.where(row.key < unpacked_cursor(cursor, tuple[float, int])[1])
    found = connection.execute(query.order_by(row.key.desc()).limit(limit + 1)).all()
    page = found[:limit]
    lines = [
        DeliveryLine(**{name: getattr(stored, name) for name in DeliveryLine.__struct_fields__}) for stored in page
    ]
    return lines, _following(page) if len(found) > limit else None


def _following(page: Sequence[Row[Any]]) -> str:
    return packed_cursor((page[-1].at, page[-1].key))


def _check(connection: Connection, alert: int) -> None:
    if connection.execute(select(tables.alert.c.key).where(tables.alert.c.key == alert)).one_or_none() is None:
        raise NoAlert(alert)
