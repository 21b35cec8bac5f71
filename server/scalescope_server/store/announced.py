"""What open pages are to be told of a run's alerts: what was put there for them within the last minute."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, bindparam, select

from scalescope_server.store import tables
from scalescope_server.store.leases import clock_of
from scalescope_server.store.outbox import BROWSER

# A page that was away for longer has been told so, and fetches what it shows.
FRESH_S = 60.0
MOST = 8
# The newest of all channels, among which those for pages are looked for.
LOOKED_AT = 100


class Announcement(Struct, frozen=True):
    """``id``: the same wherever and however often it is read. ``notice``: as it was entered."""

    id: str
    notice: dict[str, Any]


def read_announced(connection: Connection, run: int) -> list[Announcement]:
    """The newest first, at most :data:`MOST`."""
    found = connection.execute(_NEWEST, {"of_run": run}).all()
    if not any(row.channel == BROWSER for row in found):
        return []
    since = clock_of(connection) - FRESH_S
    fresh = [row for row in found if row.channel == BROWSER and row.tried_at is not None and row.tried_at > since]
    return [Announcement(row.id, row.notice) for row in fresh[:MOST]]


_row = tables.delivery.c
_NEWEST = (
    select(_row.id, _row.channel, _row.notice, _row.tried_at)
    .where(_row.run == bindparam("of_run"))
    .order_by(_row.key.desc())
    .limit(LOOKED_AT)
)
