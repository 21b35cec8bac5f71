"""Writes that are not batches: connections, signs of life, what the user says of a run, judgements."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from scalescope.wire import Heartbeat, Hello
from sqlalchemy import Connection, bindparam, delete, select, update

from scalescope_server.store import tables
from scalescope_server.store.delivery import Admission
from scalescope_server.store.errors import NotFound
from scalescope_server.store.judging import Judged
from scalescope_server.store.leases import renew
from scalescope_server.store.origin import check_last, origin_of, seen
from scalescope_server.store.records import FindingRow
from scalescope_server.store.transaction import Transaction
from scalescope_server.store.upsert import larger, replace_rows


def admit(transaction: Transaction, hello: Hello, at: float) -> Admission:
    """Let a connection of the caller's in, in the place of the one before."""
    origin = origin_of(transaction, hello, at)
    row = tables.ledger.c
    mine = (row.segment == origin.segment) & (row.rank == origin.rank)
    last = origin.connection + 1
    transaction.connection.execute(update(tables.ledger).where(mine).values(connection=last))
    return Admission(origin.ledger, last)


def enter_heartbeat(
    transaction: Transaction, hello: Hello, beat: Heartbeat, at: float, connection: int | None = None
) -> None:
    """The caller lives, whether or not it has sent a record yet. Raises :class:`Superseded`."""
    origin = origin_of(transaction, hello, at)
    check_last(origin, connection)
    row = tables.ledger.c
    told = {
        "last_seen_at": at,
        "dropped": larger(row.dropped, beat.dropped),
        "beat_at": at,
        "progress_step": None if beat.step is None else origin.first_step + beat.step,
        "progress_at": _progress_at(beat, at),
        "pending": beat.pending,
        "sent_bytes": larger(row.sent_bytes, beat.sent_bytes),
        "thread_cpu_s": _seconds(beat.thread_cpu_s),
    }
    mine = (row.segment == origin.segment) & (row.rank == origin.rank)
    transaction.connection.execute(update(tables.ledger).where(mine).values(told))
    seen(transaction.connection, origin.run, at)


def _progress_at(beat: Heartbeat, at: float) -> float | None:
    """When the last update closed by our clock: how long ago that was, the trainer knows by its own."""
    ago = math.nan if beat.progress_at is None else beat.at - beat.progress_at
    return at - max(ago, 0.0) if math.isfinite(ago) else None


def _seconds(told: float | None) -> float | None:
    return told if told is not None and math.isfinite(told) and told >= 0 else None


def patch_run(connection: Connection, run: str, changes: dict[str, Any]) -> None:
    key = run_key(connection, run)
    if changes:
        connection.execute(update(tables.run).where(tables.run.c.key == key).values(changes))


def commit_judgement(connection: Connection, judged: Judged) -> bool:
    """Whether it counts: not when another server has judged the run since."""
    key = run_key(connection, judged.run)
    if judged.fence is not None and not renew(connection, key, judged.fence):
        return False
    enter_judgement(connection, key, judged)
    return True


def enter_judgement(connection: Connection, key: int, judged: Judged) -> None:
    """Store state, watermark and findings; how far rules were evaluated is not known then."""
    row = {"run": key, "updates": judged.updates, "state": judged.state}
    replace_rows(connection, tables.judgement, [row])
    # A finding may be taken back: probing that was healthy is not once the scale thrashes.
    connection.execute(delete(tables.finding).where(tables.finding.c.run == key))
    replace_rows(connection, tables.finding, [_finding_row(key, finding) for finding in judged.findings])


def run_key(connection: Connection, run: str) -> int:
    """The run's key inside. Raises :class:`NotFound`."""
    key = connection.execute(_KEY, {"run_id": run}).scalar_one_or_none()
    if key is None:
        raise NotFound(run)
    return int(key)


def _finding_row(run: int, finding: FindingRow) -> dict[str, Any]:
    row = msgspec.structs.asdict(finding)
    # Through JSON, where a number that is not finite is null.
    return {**row, "run": run, "evidence": msgspec.json.decode(msgspec.json.encode(finding.evidence))}


_KEY = select(tables.run.c.key).where(tables.run.c.id == bindparam("run_id"))
