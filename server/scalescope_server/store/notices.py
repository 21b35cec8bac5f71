"""Notices on their way into the outbox, in the transaction that stores what they tell of."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection

from scalescope_server.store import tables
from scalescope_server.store.alert_records import DeliveryRow
from scalescope_server.store.damping import damp
from scalescope_server.store.digests import digest_of
from scalescope_server.store.leases import clock_of
from scalescope_server.store.outbox import BROWSER, DELIVERED, WAITING
from scalescope_server.store.upsert import insert_for


def enter_deliveries(connection: Connection, run: int, rows: Sequence[DeliveryRow], alert: int | None = None) -> None:
    """Let ``rows`` be due, and those for pages be there; what of an alert that flaps is not told is in ``damping``.

    ``alert``: the key of the one that they are all of. One that is there by its id is not entered again.
    """
    if rows:
        enter_at(connection, run, rows, alert, clock_of(connection))


def enter_at(connection: Connection, run: int, rows: Sequence[DeliveryRow], alert: int | None, now: float) -> None:
    entered = [_columns(row, run, alert, now) for row in rows]
    if alert is not None:
        damp(connection, alert, entered, now)
    new = insert_for(connection.dialect.name, tables.delivery).on_conflict_do_nothing(index_elements=["id"])
    connection.execute(new, entered)


def delivery_id(alert: int, turn: str) -> str:
    """Of a ``turn`` by its own id. A rule that is made again under its name counts anew, for another alert."""
    return digest_of((str(alert), turn))


def _columns(row: DeliveryRow, run: int, alert: int | None, now: float) -> dict[str, object]:
    shown = row.channel == BROWSER
    return msgspec.structs.asdict(row) | {
        "id": row.id if alert is None else delivery_id(alert, row.id),
        "run": run,
        "alert": alert,
        # Through JSON, where a number that is not finite is null.
        "notice": msgspec.json.decode(msgspec.json.encode(row.notice)),
        "state": DELIVERED if shown else WAITING,
        "due_at": now,
        "attempts": 0,
        "tried_at": now if shown else None,
        "error": None,
    }
