"""How a run stands for who watches it: its names, its state, how far it is judged, when its last update came."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, Row, Select, bindparam, exists, func, or_, select

from scalescope_server.store import tables
from scalescope_server.store.errors import NotFound
from scalescope_server.store.judging import Position
from scalescope_server.store.leases import Claim, clock_column, standing
from scalescope_server.store.records import RunId, RunState
from scalescope_server.store.runs import state_of

# States of an alert that end by time alone.
_WAITING = ("pending", "recovering")


class Vigil(Struct, frozen=True, kw_only=True):
    """``revision``: of the rule book. ``position``: the last update at which rules were evaluated, None before any.

    ``judged``: how many updates went into the findings. ``healthy``: what somebody has said of it.
    """

    run: RunId
    name: str
    project: str
    tags: tuple[str, ...]
    state: RunState
    healthy: bool | None
    revision: int
    position: Position | None
    judged: int


class Silence(Struct, frozen=True, kw_only=True):
    """How a run stands where no update comes.

    ``last_update_at``: when the last one of its newest start came, by our clock as far as that is known, None before
    the first.
    ``attempted``: how many updates are stored. ``claim``: what a claim on it would find.
    """

    run: RunId
    state: RunState
    position: Position | None
    attempted: int
    last_update_at: float | None
    claim: Claim


def read_vigil(connection: Connection, run: str, silent_before: float) -> Vigil:
    """The vigil over a run. :class:`NotFound`."""
    row = connection.execute(_VIGIL.where(_run.id == bindparam("run_id")), {"run_id": run}).one_or_none()
    if row is None:
        raise NotFound(run)
    return _vigil(row, silent_before)


def read_newest_vigils(connection: Connection, limit: int, silent_before: float) -> list[Vigil]:
    """Those over the newest runs, the newest first."""
    newest = _VIGIL.where(~_run.doomed).order_by(_run.started_at.desc(), _run.key.desc()).limit(limit)
    return [_vigil(row, silent_before) for row in connection.execute(newest)]


def _vigil(row: Row[Any], silent_before: float) -> Vigil:
    return Vigil(
        run=RunId(row.id),
        name=row.name,
        project=row.project,
        tags=tuple(row.tags),
        state=state_of(row, silent_before),
        healthy=row.healthy,
        revision=row.revision or 0,
        position=_position(row),
        judged=row.updates or 0,
    )


def read_silences(
    connection: Connection, runs: Collection[RunId], holder: str, silent_before: float
) -> dict[RunId, Silence]:
    """Those of ``runs`` that are there, as ``holder`` finds them."""
    asked = _SILENCES.add_columns(clock_column(connection).label("now"))
    found: dict[RunId, Silence] = {}
    for row in connection.execute(asked, {"ids": sorted(runs)}) if runs else ():
        run, last = RunId(row.id), last_update_at(row)
        # Of several starts the newest is read last: it is not late with an update because another one is long ago.
        found[run] = Silence(
            run=run,
            state=state_of(row, silent_before),
            position=_position(row),
            attempted=row.attempted,
            last_update_at=last,
            claim=standing(row, holder),
        )
    return found


def read_to_watch(connection: Connection, seen_since: float, ended_since: float) -> list[RunId]:
    """Runs that were seen since then and of which time alone may change an alert: those that have not ended, or have
    since ``ended_since``, or have one that waits.
    """
    row = tables.run.c
    waiting = exists().where(tables.alert.c.run == row.key, tables.alert.c.state.in_(_WAITING))
    lately = row.last_seen_at >= ended_since
    query = select(row.id).where(
        ~row.doomed, row.last_seen_at >= seen_since, or_(row.ending.is_(None), lately, waiting)
    )
    return [RunId(found) for found in connection.execute(query).scalars()]


def _position(row: Row[Any]) -> Position | None:
    return None if row.rules_segment is None else Position(row.rules_segment, row.rules_step)


def last_update_at(row: Row[Any]) -> float | None:
    """As the last heartbeat of rank 0 tells, unless an update has come since: then when it was last seen."""
    if row.highest_step is None or row.highest_step < 0:
        return None
    is_told = row.progress_at is not None and (row.progress_step or 0) >= row.highest_step
    return float(row.progress_at if is_told else row.rank_seen_at)


_run, _judgement, _ledger, _lease = tables.run.c, tables.judgement.c, tables.ledger.c, tables.lease.c
_segment = tables.segment.c
_JUDGED = tables.run.outerjoin(tables.judgement, _judgement.run == _run.key)
_REVISION = select(func.max(tables.rulebook.c.revision)).scalar_subquery()
_VIGIL: Select[Any] = select(
    tables.run, _judgement.updates, _judgement.rules_segment, _judgement.rules_step, _REVISION.label("revision")
).select_from(_JUDGED)
_SILENCES: Select[Any] = (
    select(
        *(_run.id, _run.ending, _run.last_seen_at, _run.attempted),
        *(_judgement.rules_segment, _judgement.rules_step),
        *(_ledger.highest_step, _ledger.progress_step, _ledger.progress_at, _lease.holder, _lease.fence, _lease.until),
        _ledger.last_seen_at.label("rank_seen_at"),
    )
    .select_from(
        _JUDGED.outerjoin(tables.segment, _segment.run == _run.key)
        .outerjoin(tables.ledger, (_ledger.segment == _segment.key) & (_ledger.rank == 0))
        .outerjoin(tables.lease, _lease.run == _run.key)
    )
    .where(_run.id.in_(bindparam("ids", expanding=True)))
    .order_by(_segment.ordinal)
)
