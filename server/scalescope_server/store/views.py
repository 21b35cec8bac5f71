"""Which records to read, so that a view of any run stays small: all of them, or the finest level that fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, Table, bindparam, func, select

from scalescope_server.store import tables
from scalescope_server.store.folding import lowest_level
from scalescope_server.store.levels import bucket_size, finest
from scalescope_server.store.pruned import is_pruned
from scalescope_server.store.tables import ALL_RANKS

MAX_BUCKETS = 300
# Rows of a level, each of one scale, in one answer: where the scale thrashes a bucket has many of them.
MAX_ROLLED = 1500
# 128 MiB of numbers in one answer: a model of many thousand tensors is shown in coarser buckets.
MAX_CELLS = 2**24


@dataclass(frozen=True, slots=True)
class View:
    """What to read: records of one ``kind`` of a run at steps [start, stop).

    ``rank``: whose, ``ALL_RANKS`` for the merge of all that the run has.
    """

    run: int
    kind: str
    rank: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where records of a sort are: one by one, and folded into levels. Both tables have kind, rank and scale."""

    exact: Table
    rolled: Table


SAMPLES = Shelf(tables.sample, tables.sample_rollup)
TALLIES = Shelf(tables.tally, tables.tally_rollup)

_RANKS = (
    select(tables.ledger.c.rank)
    .distinct()
    .join(tables.segment, tables.segment.c.key == tables.ledger.c.segment)
    .where(tables.segment.c.run == bindparam("of_run"))
)


def view_of(run: Row[Any], kind: str, rank: int | None, start: int, stop: int) -> View:
    """What to read of a row of ``run``; ``rank`` None: of all its ranks together."""
    if rank is None:
        rank = ALL_RANKS if run.world_size > 1 else 0
    return View(run.key, kind, rank, start, stop)


def read_view(
    connection: Connection, shelf: Shelf, view: View, points: int, *, cells: int
) -> tuple[int, Iterable[Row[Any]]]:
    """(level, rows in order of their steps); level 0 is the records themselves, which may be many steps apart, of each
    rank one by one.

    ``points`` is clamped to 1 to ``MAX_BUCKETS``; ``cells``: the numbers that are kept of a row. The level is coarser
    where the rows of all scales would be more than ``MAX_ROLLED`` or hold more than ``MAX_CELLS`` (only the coarsest
    may, in a run of more scales than that), and where some of the records were pruned.
    """
    points, most = min(max(points, 1), MAX_BUCKETS), min(max(MAX_CELLS // max(cells, 1), 1), MAX_ROLLED)
    exact = not is_pruned(connection, view.run, view.start, view.stop)
    if exact and _fits(connection, _exact_keys(shelf.exact, view), min(points, most)):
        return 0, connection.execute(_exact(shelf.exact, view))
    lowest = lowest_level(connection, shelf.rolled, view.run, view.kind, view.rank) or 1
    level, coarsest = finest(view.start, view.stop, points, lowest=lowest), _levels_of_run(connection, view.run)
    while level < coarsest and not _fits(connection, _rolled_keys(shelf.rolled, view, level), most):
        level += 1
    return level, connection.execute(_rolled(shelf.rolled, view, level))


def _levels_of_run(connection: Connection, run: int) -> int:
    return int(connection.execute(select(tables.run.c.levels).where(tables.run.c.key == run)).scalar_one())


def _fits(connection: Connection, keys: Select[Any], limit: int) -> bool:
    counted = select(func.count()).select_from(keys.limit(limit + 1).subquery())
    return bool(connection.execute(counted).scalar_one() <= limit)


def _exact_keys(table: Table, view: View) -> Select[Any]:
    row = table.c
    # Ranks by their numbers: the index has them before the steps.
    of_ranks = row.rank.in_(_RANKS) if view.rank == ALL_RANKS else row.rank == view.rank
    within = select(row.key).where(row.run == view.run, row.kind == view.kind, of_ranks)
    if view.rank == ALL_RANKS:
        within = within.params(of_run=view.run)
    return within.where(row.step >= view.start, row.step < view.stop)


def _exact(table: Table, view: View) -> Select[Any]:
    return _exact_keys(table, view).with_only_columns(table).order_by(table.c.step, table.c.key)


def _rolled_keys(table: Table, view: View, level: int) -> Select[Any]:
    row, size = table.c, bucket_size(level)
    within = select(row.bucket).where(row.run == view.run, row.kind == view.kind, row.rank == view.rank)
    return within.where(row.level == level, row.bucket.between(view.start // size, (view.stop - 1) // size))


def _rolled(table: Table, view: View, level: int) -> Select[Any]:
    row = table.c
    whole = _rolled_keys(table, view, level).with_only_columns(table)
    return whole.order_by(row.bucket, row.scale_flag, row.scale, row.periodic)
