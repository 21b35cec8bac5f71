"""Notices on their way into the outbox, in the transaction that stores what they tell of."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection

from scalescope_server.store import tables
from scalescope_server.store.alert_records import DeliveryRow
from scalescope_server.store.leases import clock_of
from scalescope_server.store.outbox import BROWSER, DELIVERED, WAITING
from scalescope_server.store.upsert import insert_for


def enter_deliveries(connection: Connection, run: int, rows: Sequence[DeliveryRow]) -> None:
    """Let ``rows`` be due at once, and those for pages be there. One that is there by its id is not entered again."""
    if not rows:
        return
    now = clock_of(connection)
    waiting = {"run": run, "state": WAITING, "due_at": now, "attempts": 0, "tried_at": None}
    new = insert_for(connection.dialect.name, tables.delivery).on_conflict_do_nothing(index_elements=["id"])
    # Through JSON, where a number that is not finite is null.
    entered = [msgspec.structs.asdict(row) | waiting for row in rows]
    for row in entered:
        row["notice"] = msgspec.json.decode(msgspec.json.encode(row["notice"]))
        if row["channel"] == BROWSER:
            row |= {"state": DELIVERED, "tried_at": now}
    connection.execute(new, entered)
