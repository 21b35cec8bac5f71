"""How far runs have come, in a few numbers each: enough to see whether another server has changed one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, Row, Select, bindparam, select

from scalescope_server.store import tables
from scalescope_server.store.records import RunId

# Beside those asked for: what was begun last.
NEWEST = 100


class Mark(Struct, frozen=True):
    """A run as it was at one look. ``seen_at``: seconds since the epoch; ``judged``: None before the first pass."""

    seen_at: float
    attempted: int
    length: int
    ending: str | None
    name: str
    judged: int | None


def read_marks(connection: Connection, runs: Collection[RunId]) -> dict[RunId, Mark]:
    """Those of ``runs`` that are there, and of the newest."""
    found = connection.execute(_NEWEST).all()
    lacking = set(runs) - {row.id for row in found}
    if lacking:
        found = [*found, *connection.execute(_NAMED, {"ids": sorted(lacking)}).all()]
    return {RunId(row.id): _mark(row) for row in found}


def _mark(row: Row[Any]) -> Mark:
    return Mark(row.last_seen_at, row.attempted, row.length, row.ending, row.name, row.updates)


_run, _judgement = tables.run.c, tables.judgement.c
_ALL: Select[Any] = select(
    _run.id, _run.last_seen_at, _run.attempted, _run.length, _run.ending, _run.name, _judgement.updates
).outerjoin_from(tables.run, tables.judgement, _judgement.run == _run.key)
_NEWEST = _ALL.where(~_run.doomed).order_by(_run.started_at.desc(), _run.key.desc()).limit(NEWEST)
_NAMED = _ALL.where(~_run.doomed & _run.id.in_(bindparam("ids", expanding=True)))
