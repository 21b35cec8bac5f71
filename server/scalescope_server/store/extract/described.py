"""What a run says of itself: a row for the run, for each of its parameters, modules, segments and ranks."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from sqlalchemy import Connection

from scalescope_server.store.extract.frontier import Frontier
from scalescope_server.store.extract.tables import Field, Page, Position, Table, columns_of_rows, fields
from scalescope_server.store.records import RunDetail

_RUN = (
    *fields("text", "id", "project", "name", "state", "note"),
    *fields("json", "tags"),
    *fields("boolean", "healthy"),
    *fields("real", "started_at", "last_seen_at"),
    *fields("integer", "attempted", "skipped", "steps", "world_size", "every"),
    *fields("json", "config", "environment", "scaler", "optimizers"),
)
_PARAMETER = (
    *fields("integer", "index"),
    *fields("text", "name", "module"),
    *fields("json", "shape"),
    *fields("integer", "numel"),
    *fields("text", "dtype", "compute_format"),
    *fields("integer", "backward"),
)
_MODULE = (*fields("integer", "index"), *fields("text", "name", "kind"))
_SEGMENT = (
    *fields("text", "id"),
    *fields("integer", "ordinal", "first_step"),
    *fields("real", "started_at", "ended_at"),
    *fields("text", "end", "detail", "order"),
)
_RANK = (
    *fields("text", "segment"),
    *fields("integer", "rank", "received", "duplicate", "dropped", "lost", "highest"),
    *fields("real", "last_seen_at"),
)


def run_table(frontier: Frontier, detail: RunDetail) -> Table:
    """One row; ``steps`` is one more than the highest step that the extract holds."""
    told = {name: getattr(detail.summary, name) for name in detail.summary.__struct_fields__}
    told |= {name: getattr(detail, name) for name in detail.__struct_fields__} | {"steps": frontier.stop}
    return _at_once(_RUN, [[told[field.name] for field in _RUN]])


def parameters_table(detail: RunDetail) -> Table:
    return _of(_PARAMETER, detail.parameters)


def modules_table(detail: RunDetail) -> Table:
    return _of(_MODULE, detail.modules)


def segments_table(detail: RunDetail) -> Table:
    return _of(_SEGMENT, detail.segments)


def ranks_table(detail: RunDetail) -> Table:
    """What was delivered of each rank of each segment."""
    return _of(_RANK, detail.ledger)


def _of(shown: tuple[Field, ...], found: Sequence[Struct]) -> Table:
    return _at_once(shown, [[getattr(each, field.name) for field in shown] for each in found])


def _at_once(shown: tuple[Field, ...], rows: Sequence[Sequence[object]]) -> Table:
    columns = columns_of_rows(rows, len(shown))

    def read(_: Connection, __: Position | None) -> Page:
        return Page(columns, None)

    return Table(shown, read)
