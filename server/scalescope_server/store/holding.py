"""Runs held by one server while it writes them: several share a Postgres, and what each adds rests on what is stored.

SQLite has one writer, who holds all of it.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, bindparam, select, text

from scalescope_server.store import tables

# How long one that another server holds is waited for.
HELD_WITHIN = "500ms"


def hold_runs(connection: Connection, runs: Collection[str], *, shortly: bool = False) -> Collection[str]:
    """Wait until no other transaction writes ``runs``; those that are there, and held until this transaction ends.

    ``shortly``: neither for them nor for any other lock of this transaction longer than ``HELD_WITHIN``.
    """
    if connection.dialect.name != "postgresql" or not runs:
        return runs
    if shortly:
        connection.execute(text(f"SET LOCAL lock_timeout = '{HELD_WITHIN}'"))
    return connection.execute(_HELD, {"of_runs": sorted(runs)}).scalars().all()


def hold_free(connection: Connection, runs: Collection[str]) -> Collection[str]:
    """Those of ``runs`` that are there and no other transaction writes, held until this transaction ends."""
    if connection.dialect.name != "postgresql" or not runs:
        return runs
    return connection.execute(_FREE, {"of_runs": sorted(runs)}).scalars().all()


# In one order, so that servers that want the same runs wait for each other and not in a circle. Rows that refer to
# a run may still be entered by those who write nothing else of it.
_ASKED = (
    select(tables.run.c.id).where(tables.run.c.id.in_(bindparam("of_runs", expanding=True))).order_by(tables.run.c.key)
)
_HELD = _ASKED.with_for_update(key_share=True)
_FREE = _ASKED.with_for_update(key_share=True, skip_locked=True)
