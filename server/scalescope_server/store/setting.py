"""What holds of a run beside its updates: in which formats it computes, whether its gradients are zero, its end."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, select

from scalescope_server.store import tables
from scalescope_server.store.curves import ranks_of
from scalescope_server.store.facts import Told, read_setup
from scalescope_server.store.judging import Setting


def read_setting(connection: Connection, run: Row[Any]) -> Setting:
    """That of ``run``, a row of the table."""
    elements = connection.execute(_ELEMENTS, {"of_run": run.key}).all()
    autocast = read_setup(connection, Told(run.key, 0, None, None)).get("autocast")
    share = {"of_run": run.key, "of_rank": ranks_of(run.world_size, None)("zero_share")}
    return Setting(
        elements={row.compute_format or "": int(row.elements) for row in elements},
        autocast=_formats(autocast),
        zero=connection.execute(_ZERO_SHARE, share).scalar_one_or_none() == 1.0,
        ended=run.ending is not None,
    )


def _formats(autocast: object) -> tuple[str, ...]:
    found = autocast.values() if isinstance(autocast, dict) else ()
    return tuple(sorted({name for name in found if isinstance(name, str)}))


_row = tables.parameter.c
_ELEMENTS = (
    select(_row.compute_format, func.sum(_row.numel).label("elements"))
    .where(_row.run == bindparam("of_run"))
    .group_by(_row.compute_format)
)
_series, _scalar = tables.series.c, tables.scalar.c
_ZERO_SHARE = (
    select(_scalar.value)
    .where(_scalar.rank == bindparam("of_rank"))
    .where(
        _scalar.series
        == select(_series.key).where(_series.run == bindparam("of_run"), _series.name == "zero_share").scalar_subquery()
    )
    .order_by(_scalar.step.desc(), _scalar.segment.desc())
    .limit(1)
)
