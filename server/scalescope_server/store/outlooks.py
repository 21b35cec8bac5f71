"""What a server that would judge some runs finds: which have something left to judge, and whose they are.

One query for all of them: each server asks once a second for all runs that others judge.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, bindparam, select

from scalescope_server.store import tables
from scalescope_server.store.history import is_to_end
from scalescope_server.store.leases import Claim, clock_column, standing
from scalescope_server.store.records import RunId


class Outlook(NamedTuple):
    """Whether more or other updates of a run are stored than are judged, by its findings or by rules, or what fires is
    to end with it; and what a claim would find.

    The claim is not made.
    """

    unjudged: bool
    claim: Claim


def read_outlooks(connection: Connection, runs: Collection[RunId], holder: str) -> dict[RunId, Outlook]:
    """Those of ``runs`` that are there, as ``holder`` finds them."""
    asked = _ASKED.add_columns(clock_column(connection).label("now"))
    rows = connection.execute(asked, {"ids": sorted(runs)}) if runs else ()
    return {RunId(row.id): Outlook(_is_unjudged(row), standing(row, holder)) for row in rows}


def _is_unjudged(row: Row[Any]) -> bool:
    is_behind = row.rules_step is not None and row.rules_step < row.last_step
    return bool(is_behind or row.is_to_end or (row.updates or 0) != row.attempted)


_run, _judgement, _lease = tables.run.c, tables.judgement.c, tables.lease.c
_ASKED = (
    select(
        *(_run.id, _run.attempted, _run.last_step, _judgement.updates, _judgement.rules_step),
        *(_lease.holder, _lease.fence, _lease.until, is_to_end().label("is_to_end")),
    )
    .select_from(
        tables.run.outerjoin(tables.judgement, _judgement.run == _run.key).outerjoin(
            tables.lease, _lease.run == _run.key
        )
    )
    .where(_run.id.in_(bindparam("ids", expanding=True)))
)
