"""When each start of a run's trainer was there, beside its updates: since when, until when, and how it ended."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, Select, bindparam, func, select

from scalescope_server.store import tables
from scalescope_server.store.vigil import last_update_at


class StartRow(NamedTuple):
    """``began_at``, ``ended_at`` and ``updated_at``, when its last stored update of rank 0 was: by the trainer's clock.

    ``seen_at``: the last sign of life of any of its ranks, and ``heard_at``, when that update came: by our clock.
    """

    segment: int
    began_at: float
    ended_at: float | None
    ending: Literal["finished", "crashed"] | None
    updated_at: float | None
    heard_at: float | None
    seen_at: float

    @property
    def over_at(self) -> float | None:
        """When it said that it ended, and no later than its last sign of life: its clock may have been set since."""
        return None if self.ended_at is None else min(self.ended_at, self.placed(self.seen_at))

    def placed(self, at: float) -> float:
        """A moment by our clock as one by the clock of updates, as far as the two are known to go apart."""
        if self.updated_at is None or self.heard_at is None:
            return at
        return self.updated_at + max(at - self.heard_at, 0.0)


def read_starts(connection: Connection, run: int) -> list[StartRow]:
    """Those of a run, in order."""
    return [
        StartRow(
            segment=row.ordinal,
            began_at=row.started_at,
            ended_at=row.ended_at,
            ending=row.ending,
            updated_at=row.updated_at,
            heard_at=last_update_at(row),
            seen_at=row.started_at if row.seen_at is None else row.seen_at,
        )
        for row in connection.execute(_STARTS, {"of_run": run})
    ]


_segment, _ledger, _step = tables.segment.c, tables.ledger.c, tables.step.c
# Of all ranks, beside the first one.
_ANY = tables.ledger.alias().c
_SEEN = (
    select(func.max(_ANY.last_seen_at)).where(_ANY.segment == _segment.key).correlate(tables.segment).scalar_subquery()
)
_NEWEST = (_step.run == _segment.run) & (_step.rank == 0) & (_step.step == _ledger.highest_step)
_STARTS: Select[Any] = (
    select(
        *(_segment.ordinal, _segment.started_at, _segment.ended_at, _segment.ending, _step.at.label("updated_at")),
        *(_ledger.highest_step, _ledger.progress_step, _ledger.progress_at),
        _ledger.last_seen_at.label("rank_seen_at"),
        _SEEN.label("seen_at"),
    )
    .select_from(
        tables.segment.outerjoin(tables.ledger, (_ledger.segment == _segment.key) & (_ledger.rank == 0)).outerjoin(
            tables.step, _NEWEST & (_step.segment == _segment.key)
        )
    )
    .where(_segment.run == bindparam("of_run"))
    .order_by(_segment.ordinal)
)
