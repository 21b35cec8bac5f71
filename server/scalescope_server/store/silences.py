"""Projects of which nothing is told for a while."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select

from scalescope_server.store import tables
from scalescope_server.store.alert_records import SilenceRow

# More than anybody keeps an eye on: past ones go with each new one.
MAX_SILENCES = 200


def read_silences(connection: Connection, at: float) -> list[SilenceRow]:
    """Those that are not over at ``at``, in the order of their beginnings."""
    row = tables.silence.c
    query = select(tables.silence).where(row.ends_at > at).order_by(row.starts_at, row.key).limit(MAX_SILENCES)
    return [_silence(stored) for stored in connection.execute(query)]


def add_silence(
    connection: Connection, project: str, starts_at: float, ends_at: float, reason: str, at: float
) -> SilenceRow:
    """Those that are over are forgotten."""
    connection.execute(delete(tables.silence).where(tables.silence.c.ends_at <= at))
    values = {"project": project, "starts_at": starts_at, "ends_at": ends_at, "reason": reason, "created_at": at}
    stored = connection.execute(insert(tables.silence).values(values).returning(tables.silence)).one()
    return _silence(stored)


def delete_silence(connection: Connection, key: int) -> bool:
    return connection.execute(delete(tables.silence).where(tables.silence.c.key == key)).rowcount == 1


def _silence(stored: Row[Any]) -> SilenceRow:
    return SilenceRow(
        id=stored.key,
        project=stored.project,
        starts_at=stored.starts_at,
        ends_at=stored.ends_at,
        reason=stored.reason,
        created_at=stored.created_at,
    )
