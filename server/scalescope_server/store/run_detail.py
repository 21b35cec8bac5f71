"""Everything kept about one run but its numbers."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BindParameter, Connection, Row, bindparam, select

from scalescope_server.store import tables
from scalescope_server.store.rank_states import delivery_of, read_disagreements, read_ranks
from scalescope_server.store.records import LedgerRow, ModuleRow, ParameterRow, RunDetail, SegmentRow
from scalescope_server.store.runs import summaries


def read_run(connection: Connection, run: Row[Any], silent_before: float, now: float) -> RunDetail:
    """The detail of a row of ``run``, as it stands at ``now``."""
    ledger = _ledger(connection, run.key)
    return RunDetail(
        summary=summaries(connection, [run], silent_before)[0],
        config=run.config,
        environment=run.environment,
        scaler=run.scaler,
        optimizers=run.optimizers,
        parameters=read_parameters(connection, run.key),
        modules=read_modules(connection, run.key),
        segments=_segments(connection, run.key),
        world_size=run.world_size,
        ranks=sorted({row.rank for row in ledger}),
        rank_states=read_ranks(connection, run, silent_before, now),
        disagreements=read_disagreements(connection, run.key),
        ledger=ledger,
        note=run.note,
        healthy=run.healthy,
        every=run.every,
        pruned_below=run.pruned_below,
    )


def read_parameters(connection: Connection, run: int) -> list[ParameterRow]:
    """The parameters of the run in forward order."""
    found = connection.execute(_PARAMETERS, {"of_run": run})
    return [
        ParameterRow(
            name=stored.name,
            module=stored.module,
            shape=stored.shape,
            dtype=stored.dtype,
            numel=stored.numel,
            compute_format=stored.compute_format,
            index=stored.position,
            backward=stored.backward,
        )
        for stored in found
    ]


def read_modules(connection: Connection, run: int) -> list[ModuleRow]:
    """The watched modules of the run in forward order; none where no trainer told them."""
    found = connection.execute(_MODULES, {"of_run": run})
    return [ModuleRow(name=stored.name, kind=stored.kind, index=stored.position) for stored in found]


def _segments(connection: Connection, run: int) -> list[SegmentRow]:
    found = connection.execute(_SEGMENTS, {"of_run": run})
    return [
        SegmentRow(
            id=stored.id,
            ordinal=stored.ordinal,
            started_at=stored.started_at,
            ended_at=stored.ended_at,
            end=stored.ending,
            detail=stored.detail,
            first_step=stored.first_step,
            order=stored.backward_order,
        )
        for stored in found
    ]


def _ledger(connection: Connection, run: int) -> list[LedgerRow]:
    return [delivery_of(stored) for stored in connection.execute(_LEDGER, {"of_run": run})]


# Made once: a page asks for them at every update.
_run: BindParameter[int] = bindparam("of_run")
_PARAMETERS = select(tables.parameter).where(tables.parameter.c.run == _run).order_by(tables.parameter.c.position)
_MODULES = select(tables.module).where(tables.module.c.run == _run).order_by(tables.module.c.position)
_SEGMENTS = select(tables.segment).where(tables.segment.c.run == _run).order_by(tables.segment.c.ordinal)
_LEDGER = (
    select(tables.ledger, tables.segment.c.id.label("segment_id"))
    .join(tables.segment, tables.segment.c.key == tables.ledger.c.segment)
    .where(tables.segment.c.run == _run)
    .order_by(tables.segment.c.ordinal, tables.ledger.c.rank)
)
