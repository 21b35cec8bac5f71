"""Deleting a run: gone from every list at once, its rows behind that in pieces, each a short transaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Table, delete, insert, literal, select, tuple_, update

from scalescope_server.store import tables
from scalescope_server.store.errors import NotFound
from scalescope_server.store.transaction import Transaction

# What one piece deletes: rows of numbers, or those that hold a table each.
PIECE_ROWS = 4096
PIECE_TABLES = 128
# What it costs to look for a series' rows, in rows.
OF_SERIES = 16


def doom_run(transaction: Transaction, run: str) -> None:
    """Let a run be gone for everyone; what its trainers still send is refused from now on. :class:`NotFound`."""
    connection, row = transaction.connection, tables.run.c
    key = connection.execute(select(row.key).where(row.id == run)).scalar_one_or_none()
    if key is None:
        raise NotFound(run)
    told = select(literal(run), tables.segment.c.id).where(tables.segment.c.run == key)
    connection.execute(insert(tables.deleted).from_select(["run", "segment"], told))
    # No run that anybody asks for, or sends to, is called like that; and its id is free for another one.
    connection.execute(update(tables.run).where(row.key == key).values(id=f":{key}", doomed=True))
    transaction.forget(key)


def erase_piece(connection: Connection) -> bool:
    """Erase some of a run that is doomed; False where none is."""
    run = connection.execute(_DOOMED).scalar_one_or_none()
    if run is None:
        return False
    left = PIECE_ROWS
    for piece in _pieces(connection, run):
        left -= piece.delete(connection, left)
        if left <= 0:
            return True
    connection.execute(delete(tables.run).where(tables.run.c.key == run))
    return True


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a table that one condition picks, in the order of an index. ``weight``: of one, in rows."""

    table: Table
    chosen: ColumnElement[bool]
    order: tuple[str, ...]
    weight: int = 1

    def delete(self, connection: Connection, room: int) -> int:
        """Delete the first of them, as many as there is room for; the answer is what they took of it."""
        columns = [self.table.c[name] for name in self.order]
        following = select(*columns).where(self.chosen).order_by(*columns).offset(max(room // self.weight, 1)).limit(1)
        beyond = connection.execute(following).one_or_none()
        some = self.chosen if beyond is None else self.chosen & (tuple_(*columns) < tuple(beyond))
        deleted = connection.execute(delete(self.table).where(some)).rowcount
        return room if beyond is not None else deleted * self.weight


def _pieces(connection: Connection, run: int) -> Iterator[_Rows]:
    """Everything of a run that may be long, the longest first."""
    yield _Rows(tables.step, tables.step.c.run == run, ("rank", "step", "segment"))
    heavy = PIECE_ROWS // PIECE_TABLES
    for table in (tables.sample, tables.tally, tables.event, tables.setup):
        yield _Rows(table, table.c.run == run, _ORDERS[table.name], heavy if "body" in table.c else 1)
    for table in (tables.sample_rollup, tables.tally_rollup):
        yield _Rows(table, table.c.run == run, tuple(table.primary_key.columns.keys()[1:]), heavy)
    for key in connection.execute(select(tables.series.c.key).where(tables.series.c.run == run)).scalars().all():
        yield _Rows(tables.scalar, tables.scalar.c.series == key, ("rank", "step", "segment"))
        yield _Rows(tables.rollup, tables.rollup.c.series == key, ("rank", "level", "bucket"))
        # Those that are gone need not be looked for again by the next piece.
        yield _Rows(tables.series, tables.series.c.key == key, ("key",), OF_SERIES)
    for table in (tables.window, tables.pruned):
        yield _Rows(table, table.c.run == run, ("rank", "first_step", "segment"))
    yield _Rows(tables.gathered, tables.gathered.c.run == run, ("kind", "step", "segment"))
    for table in (tables.parameter, tables.module):
        yield _Rows(table, table.c.run == run, ("position",))


# Each ends in the key, so that no two rows are in one place.
_ORDERS = {
    "sample": ("kind", "rank", "step", "key"),
    "tally": ("kind", "rank", "step", "key"),
    "event": ("step", "key"),
    "setup": ("rank", "step", "key"),
}
# Of several servers each erases another one.
_DOOMED = select(tables.run.c.key).where(tables.run.c.doomed).limit(1).with_for_update(skip_locked=True)
