"""A run's parameters: one list for all its segments and ranks, told apart by name.

A resumed segment, or another rank, may list its parameters in another order. Each keeps its own map into the
run's list, so samples of all of them have their rows in one order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scalescope.packing import MAX_ROWS
from scalescope.wire import Layout
from sqlalchemy import Connection, bindparam, func, select, update

from scalescope_server.store import tables
from scalescope_server.store.derived import format_code
from scalescope_server.store.errors import BadRecord
from scalescope_server.store.origin import Origin
from scalescope_server.store.upsert import Insert, insert_for, replace_rows


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Layout index -> position among the run's parameters, int64, and code of its compute format, uint8."""

    positions: NDArray[np.int64]
    formats: NDArray[np.uint8]


def enter_layout(connection: Connection, origin: Origin, record: Layout) -> None:
    """Store what a layout tells of the run's parameters.

    Raises:
        BadRecord: if it names a parameter twice, an index it does not have, moves those of the layout before,
            or the run would have more than a table of histograms holds.
    """
    _check(record)
    known = {row.name: row.position for row in connection.execute(_KNOWN, {"of_run": origin.run})}
    for parameter in record.parameters:
        known.setdefault(parameter.name, len(known))
    if len(known) > MAX_ROWS:
        raise BadRecord("layout", record.sequence, f"expected at most {MAX_ROWS} parameters in a run, got {len(known)}")
    positions = np.array([known[p.name] for p in record.parameters], "<i4")
    before = _stored(connection, origin)
    if before is not None and not np.array_equal(before.positions, positions[: len(before.positions)]):
        raise BadRecord("layout", record.sequence, "expected the parameters of the layout before, in their order")
    _store_parameters(connection, origin.run, record, positions)
    formats = np.array([format_code(p.compute_format) for p in record.parameters], np.uint8)
    row = {
        "segment": origin.segment,
        "rank": origin.rank,
        "positions": positions.tobytes(),
        "formats": formats.tobytes(),
    }
    replace_rows(connection, tables.layout, [row])
    connection.execute(_ORDERED, {"of_segment": origin.segment, "known_by": record.order})


def places_of(connection: Connection, origin: Origin) -> Places:
    """What the indexes of a caller's samples mean; empty before its first layout."""
    return _stored(connection, origin) or Places(np.zeros(0, np.int64), np.zeros(0, np.uint8))


def _check(record: Layout) -> None:
    names = {p.name for p in record.parameters}
    if len(names) != len(record.parameters):
        raise BadRecord("layout", record.sequence, "expected a different name for each parameter, got one twice")
    inside = max(record.backward, default=-1) < len(record.parameters)
    if not inside or len(set(record.backward)) != len(record.backward):
        raise BadRecord("layout", record.sequence, "expected each index once in the backward order, and only indexes")


def _stored(connection: Connection, origin: Origin) -> Places | None:
    row = connection.execute(_LAYOUT, {"of_segment": origin.segment, "of_rank": origin.rank}).one_or_none()
    if row is None:
        return None
    return Places(np.frombuffer(row.positions, "<i4").astype(np.int64), np.frombuffer(row.formats, np.uint8))


def _store_parameters(connection: Connection, run: int, record: Layout, positions: NDArray[np.int32]) -> None:
    place_in_backward = {index: place for place, index in enumerate(record.backward)}
    rows: list[dict[str, Any]] = [
        {
            "run": run,
            "position": position,
            "name": parameter.name,
            "module": parameter.module,
            "shape": parameter.shape,
            "dtype": parameter.dtype,
            "numel": parameter.numel,
            "compute_format": parameter.compute_format,
            "backward": place_in_backward.get(index),
        }
        for index, (position, parameter) in enumerate(zip(positions.tolist(), record.parameters, strict=True))
    ]
    if rows:
        connection.execute(_telling(connection.dialect.name), rows)


@cache
def _telling(dialect: str) -> Insert:
    """A later layout tells more: what it leaves open stays as it was known."""
    new = insert_for(dialect, tables.parameter)
    stored = tables.parameter.c
    plain = {name: new.excluded[name] for name in ("module", "shape", "dtype", "numel")}
    kept = {name: func.coalesce(new.excluded[name], stored[name]) for name in ("compute_format", "backward")}
    return new.on_conflict_do_update(index_elements=["run", "position"], set_={**plain, **kept})


_KNOWN = select(tables.parameter.c.name, tables.parameter.c.position).where(
    tables.parameter.c.run == bindparam("of_run")
)
_LAYOUT = select(tables.layout.c.positions, tables.layout.c.formats).where(
    tables.layout.c.segment == bindparam("of_segment"), tables.layout.c.rank == bindparam("of_rank")
)
_ORDERED = (
    update(tables.segment)
    .where(tables.segment.c.key == bindparam("of_segment"))
    .values(backward_order=bindparam("known_by"))
)
