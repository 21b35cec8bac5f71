"""Runs held by one server while it writes them: several share a Postgres, and what each adds rests on what is stored.

SQLite has one writer, who holds all of it.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, bindparam, select

from scalescope_server.store import tables


def hold_runs(connection: Connection, runs: Collection[str]) -> Collection[str]:
    """Wait until no other transaction writes ``runs``; those that are there, and held until this transaction ends."""
    if connection.dialect.name != "postgresql":
        return runs
    return connection.execute(_HELD, {"of_runs": sorted(runs)}).scalars().all() if runs else ()


# In one order, so that servers that want the same runs wait for each other and not in a circle. Rows that refer to
# a run may still be entered by those who write nothing else of it.
_HELD = (
    select(tables.run.c.id)
    .where(tables.run.c.id.in_(bindparam("of_runs", expanding=True)))
    .order_by(tables.run.c.key)
    .with_for_update(key_share=True)
)
