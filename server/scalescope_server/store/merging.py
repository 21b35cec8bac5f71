"""Where a run of one rank becomes one of several: what it has so far is the beginning of the merge of all ranks.

The merge is kept beside what each rank told, under the rank ``ALL_RANKS``, so that reading it costs the same however
many ranks there are. A run of one rank has no second copy of anything.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, Table, insert, literal, select

from scalescope_server.store import tables
from scalescope_server.store.derived import MERGED_SERIES
from scalescope_server.store.tables import ALL_RANKS


def begin_merging(connection: Connection, run: int) -> None:
    """Let what rank 0 told be what all ranks have told so far."""
    for rolled in (tables.sample_rollup, tables.tally_rollup):
        _copy(connection, rolled, rolled.c.run == run)
    named = select(tables.series.c.key).where(tables.series.c.run == run, tables.series.c.name.in_(MERGED_SERIES))
    for points in (tables.scalar, tables.rollup):
        _copy(connection, points, points.c.series.in_(named))


def _copy(connection: Connection, table: Table, chosen: ColumnElement[bool]) -> None:
    columns = [column for column in table.columns if column.name != "rank"]
    mine = select(*columns, literal(ALL_RANKS)).where(chosen, table.c.rank == 0)
    connection.execute(insert(table).from_select([*(column.name for column in columns), "rank"], mine))
