"""What of an alert's past is kept: an alert that flaps for weeks takes no more room than one that does for an hour.

How often an alert has fired, and how many of a channel's deliveries arrived or were given up, goes on counting.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Connection, and_, bindparam, delete, func, or_, select

from scalescope_server.store import tables
from scalescope_server.store.outbox import DELIVERED, FAILED, WAITING
from scalescope_server.store.upsert import insert_for

# Of each alert, the newest; with all of the firing that is on the way, and where that began.
KEPT_TRANSITIONS = 500
KEPT_DELIVERIES = 200


def trim_alert(connection: Connection, alert: int, firing: int) -> None:
    """Forget what is older than is kept. ``firing``: the number of the alert's newest."""
    cut = connection.execute(_LAST_MOVE, {"of": alert}).one_or_none()
    if cut is not None:
        connection.execute(_OLD_MOVES, {"of": alert, "cut": cut.key, "cut_firing": cut.firing, "newest": firing})
    last = connection.execute(_LAST_DELIVERY, {"of": alert, "newest": firing}).scalar_one_or_none()
    if last is not None:
        _forget_deliveries(connection, alert, firing, last)


def read_forgotten(connection: Connection) -> dict[str, tuple[int, int]]:
    """Channel -> how many of its deliveries arrived, and were given up, of those that are not kept any more."""
    return {row.channel: (row.delivered, row.failed) for row in connection.execute(select(tables.forgotten))}


def _forget_deliveries(connection: Connection, alert: int, firing: int, last: int) -> None:
    gone = connection.execute(_OLD_DELIVERIES, {"of": alert, "newest": firing, "cut": last}).all()
    counts: dict[str, dict[str, Any]] = {}
    for channel, state in gone:
        counted = counts.setdefault(channel, {"channel": channel, "delivered": 0, "failed": 0})
        if state in (DELIVERED, FAILED):
            counted[state] += 1
    if not counts:
        return
    new = insert_for(connection.dialect.name, tables.forgotten)
    row, more = tables.forgotten.c, new.excluded
    added = {"delivered": row.delivered + more.delivered, "failed": row.failed + more.failed}
    # In one order, so that no two transactions wait for each other.
    rows = [counts[channel] for channel in sorted(counts)]
    connection.execute(new.on_conflict_do_update(index_elements=["channel"], set_=added), rows)


_OF, _CUT, _CUT_FIRING, _NEWEST = (bindparam(name, type_=BigInteger) for name in ("of", "cut", "cut_firing", "newest"))
_move, _told = tables.transition.c, tables.delivery.c

_LAST_MOVE = (
    select(_move.key, _move.firing)
    .where(_move.alert == _OF)
    .order_by(_move.key.desc())
    .offset(KEPT_TRANSITIONS)
    .limit(1)
)
_beginning = select(func.min(_move.key)).where(_move.alert == _OF, _move.firing == _NEWEST).scalar_subquery()
# A firing is kept as a whole or not at all; of one that is on, however often it recovers, where it began.
_OLD_MOVES = delete(tables.transition).where(
    _move.alert == _OF,
    or_(
        and_(_move.key <= _CUT, or_(_move.firing != _NEWEST, _move.key != _beginning)),
        and_(_move.firing == _CUT_FIRING, _move.firing != _NEWEST, _move.firing > 0),
    ),
)
# What is told of the end of a firing is made of what was told of its beginning.
_past = and_(_told.alert == _OF, _told.state != WAITING, _told.firing < _NEWEST)
_LAST_DELIVERY = select(_told.key).where(_past).order_by(_told.key.desc()).offset(KEPT_DELIVERIES).limit(1)
_OLD_DELIVERIES = delete(tables.delivery).where(_past, _told.key <= _CUT).returning(_told.channel, _told.state)
