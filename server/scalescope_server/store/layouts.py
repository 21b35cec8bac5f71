"""A run's parameters and modules: one list of each for all its segments and ranks, told apart by name.

A resumed segment, or another rank, may list them in another order. Each keeps its own maps into the run's lists,
so samples of all of them have their rows in one order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scalescope.packing import MAX_ROWS
from scalescope.wire import Layout, Record, SampleKind, Subject
from sqlalchemy import Connection, Select, Table, bindparam, func, select, update

from scalescope_server.store import tables
from scalescope_server.store.derived import format_code
from scalescope_server.store.errors import BadRecord
from scalescope_server.store.origin import Origin
from scalescope_server.store.parts import Share, each, nothing, packed_parts, share_of
from scalescope_server.store.texts import storable
from scalescope_server.store.upsert import Insert, insert_for, replace_rows


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """What the indexes of a caller's records mean.

    ``positions``: parameter index -> position among the run's parameters, int64; ``formats``: code of its compute
    format, uint8; ``share``: what the merge of all ranks takes of it. ``modules``: module index -> position among the
    run's modules, int64.
    """

    positions: NDArray[np.int64]
    formats: NDArray[np.uint8]
    share: Share
    modules: NDArray[np.int64]

    def of(self, subject: Subject) -> NDArray[np.int64]:
        """Index -> position of the parameters or of the modules."""
        return self.positions if subject == "parameter" else self.modules

    def share_of(self, subject: Subject, indexes: NDArray[np.int64]) -> Share:
        """What the merge of all ranks takes of the parameters or modules at ``indexes``."""
        return self.share.of(indexes) if subject == "parameter" else each(len(indexes))

    def positions_of(self, subject: Subject, indexes: NDArray[np.int64], record: Record) -> NDArray[np.int64]:
        """Position of each of ``indexes``.

        Raises:
            BadRecord: naming ``record``, if one of them is outside the layout.
        """
        placed = self.of(subject)
        if indexes.max(initial=-1) >= len(placed):
            message = f"expected the index of one of the {len(placed)} {subject}s of the layout, got {indexes.max()}"
            raise BadRecord(type(record).__name__.lower(), record.sequence, message)
        return placed[indexes]


def enter_layout(connection: Connection, origin: Origin, record: Layout) -> None:
    """Store what a layout tells of the run's parameters and modules.

    Raises:
        BadRecord: if it names one twice, an index it does not have, moves those of the layout before, or the run
            would have more than a table of histograms holds.
    """
    _check(record)
    positions = _positions(connection, origin, record, "parameter")
    modules = _positions(connection, origin, record, "module")
    before = places_of(connection, origin)
    placed_now: dict[Subject, NDArray[np.int32]] = {"parameter": positions, "module": modules}
    for subject, placed in placed_now.items():
        told = before.of(subject)
        if not np.array_equal(told, placed[: len(told)]):
            raise BadRecord("layout", record.sequence, f"expected the {subject}s of the layout before, in their order")
    _store_parameters(connection, origin.run, record, positions)
    _store_modules(connection, origin.run, record, modules)
    formats = np.array([format_code(p.compute_format) for p in record.parameters], np.uint8)
    parts = packed_parts(record)
    row = {
        "segment": origin.segment,
        "rank": origin.rank,
        "positions": positions.tobytes(),
        "formats": formats.tobytes(),
        "modules": modules.tobytes(),
        "parts": parts,
    }
    replace_rows(connection, tables.layout, [row])
    reports = share_of(parts, len(positions), origin.rank).reports.any()
    of_caller = {"of_segment": origin.segment, "of_rank": origin.rank}
    connection.execute(_REPORTS, {**of_caller, "now_reports": bool(reports)})
    connection.execute(_ORDERED, {"of_segment": origin.segment, "known_by": record.order})


def subject_of(kind: SampleKind) -> Subject:
    """What the rows of a sample are."""
    return "module" if kind in ("forward", "grad_output") else "parameter"


def places_of(connection: Connection, origin: Origin) -> Places:
    """What the indexes of a caller's records mean; empty before its first layout."""
    row = connection.execute(_LAYOUT, {"of_segment": origin.segment, "of_rank": origin.rank}).one_or_none()
    if row is None:
        return Places(np.zeros(0, np.int64), np.zeros(0, np.uint8), nothing(0), np.zeros(0, np.int64))
    positions, modules = (np.frombuffer(raw, "<i4").astype(np.int64) for raw in (row.positions, row.modules))
    share = share_of(row.parts, len(positions), origin.rank)
    return Places(positions, np.frombuffer(row.formats, np.uint8), share, modules)


def _check(record: Layout) -> None:
    for subject in _LISTS:
        names = _names(record, subject)
        if len(set(names)) != len(names):
            raise BadRecord("layout", record.sequence, f"expected a different name for each {subject}, got one twice")
    inside = max(record.backward, default=-1) < len(record.parameters)
    if not inside or len(set(record.backward)) != len(record.backward):
        raise BadRecord("layout", record.sequence, "expected each index once in the backward order, and only indexes")


def _names(record: Layout, subject: Subject) -> list[str]:
    listed = record.parameters if subject == "parameter" else record.modules
    return [storable(each.name) for each in listed]


def _positions(connection: Connection, origin: Origin, record: Layout, subject: Subject) -> NDArray[np.int32]:
    """Index -> position in the run's list, int32; what is new goes to its end."""
    names = _names(record, subject)
    known = {row.name: row.position for row in connection.execute(_LISTS[subject], {"of_run": origin.run})}
    for name in names:
        known.setdefault(name, len(known))
    if len(known) > MAX_ROWS:
        message = f"expected at most {MAX_ROWS} {subject}s in a run, got {len(known)}"
        raise BadRecord("layout", record.sequence, message)
    return np.array([known[name] for name in names], "<i4")


def _store_modules(connection: Connection, run: int, record: Layout, positions: NDArray[np.int32]) -> None:
    placed = zip(positions.tolist(), record.modules, strict=True)
    rows = [
        {"run": run, "position": place, "name": storable(module.name), "kind": module.kind} for place, module in placed
    ]
    replace_rows(connection, tables.module, rows)


def _store_parameters(connection: Connection, run: int, record: Layout, positions: NDArray[np.int32]) -> None:
    place_in_backward = {index: place for place, index in enumerate(record.backward)}
    rows: list[dict[str, Any]] = [
        {
            "run": run,
            "position": position,
            "name": storable(parameter.name),
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


def _listed(table: Table) -> Select[Any]:
    return select(table.c.name, table.c.position).where(table.c.run == bindparam("of_run"))


@cache
def _telling(dialect: str) -> Insert:
    """A later layout tells more: what it leaves open stays as it was known."""
    new = insert_for(dialect, tables.parameter)
    stored = tables.parameter.c
    plain = {name: new.excluded[name] for name in ("module", "shape", "dtype", "numel")}
    kept = {name: func.coalesce(new.excluded[name], stored[name]) for name in ("compute_format", "backward")}
    return new.on_conflict_do_update(index_elements=["run", "position"], set_={**plain, **kept})


_LISTS: dict[Subject, Select[Any]] = {
    "parameter": _listed(tables.parameter),
    "module": _listed(tables.module),
}
_LAYOUT = select(
    tables.layout.c.positions, tables.layout.c.formats, tables.layout.c.parts, tables.layout.c.modules
).where(tables.layout.c.segment == bindparam("of_segment"), tables.layout.c.rank == bindparam("of_rank"))
_REPORTS = (
    update(tables.ledger)
    .where(tables.ledger.c.segment == bindparam("of_segment"), tables.ledger.c.rank == bindparam("of_rank"))
    .values(reports=bindparam("now_reports"))
)
_ORDERED = (
    update(tables.segment)
    .where(tables.segment.c.key == bindparam("of_segment"))
    .values(backward_order=bindparam("known_by"))
)
