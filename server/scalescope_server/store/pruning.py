"""Removing what is old: exact values and samples, but those around events; roll-ups, events and facts stay for ever.

A run is gone through in pieces that are each a short transaction. What a piece finds is the same however often it is
asked, so pruning may end anywhere and begin anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from sqlalchemy import (
    BigInteger,
    Connection,
    Row,
    Select,
    Table,
    bindparam,
    delete,
    func,
    select,
    union_all,
    update,
)

from scalescope_server.store import tables
from scalescope_server.store.levels import FACTOR
from scalescope_server.store.pruning_notes import note
from scalescope_server.store.pruning_span import KINDS, Gap, Whole, within
from scalescope_server.store.snapshots import found_run
from scalescope_server.store.transaction import Transaction
from scalescope_server.store.upsert import larger

# Events around which everything stays: skips, changes of the scale, and the first value that was not finite.
KEPT_AROUND = ("skip", "growth", "backoff", "scale_set", "nonfinite")
# Updates that stay before and after each: a scale that doubles every 2000 updates keeps 6 % of them.
MARGIN = 64
# What one piece looks at: values of updates, about, and updates. Some ten milliseconds of a writer's time.
PIECE_VALUES = 8192
PIECE_STEPS = 512
# What a row takes in a SQLite file, a record's table apart: measured with 12,000 updates of 22 series.
STEP_BYTES, VALUE_BYTES, RECORD_BYTES = 70, 22, 120


class Removed(Struct, frozen=True):
    """How much is removed, or would be. ``size``: bytes of the database, about."""

    updates: int = 0
    values: int = 0
    samples: int = 0
    tallies: int = 0
    size: int = 0

    def plus(self, other: Removed) -> Removed:
        return Removed(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


class Piece(Struct, frozen=True):
    """What one piece came to; ``following``: where the next begins, None where nothing older is left."""

    removed: Removed
    following: int | None


def prune_piece(transaction: Transaction, run: str, start: int, before: float) -> Piece:
    """Remove what is older than ``before`` (seconds since the epoch) of the updates from ``start`` on.

    Raises:
        NotFound: if there is no such run.
    """
    connection = transaction.connection
    whole, gaps = _look(connection, run, start, before)
    if whole is None:
        return Piece(Removed(), None)
    removed = Removed()
    for gap in gaps:
        note(connection, whole, gap)
        removed = removed.plus(_remove(connection, whole, gap))
    examined = {"pruned_below": larger(tables.run.c.pruned_below, whole.stop)}
    connection.execute(update(tables.run).where(tables.run.c.key == whole.run).values(examined))
    return Piece(removed, _following(connection, whole, removed))


def count_piece(connection: Connection, run: str, start: int, before: float) -> Piece:
    """What :func:`prune_piece` would remove."""
    whole, gaps = _look(connection, run, start, before)
    if whole is None:
        return Piece(Removed(), None)
    removed = Removed()
    for gap in gaps:
        removed = removed.plus(_count(connection, whole, gap))
    return Piece(removed, _following(connection, whole, removed))


def _look(connection: Connection, run: str, start: int, before: float) -> tuple[Whole | None, list[Gap]]:
    """The piece at ``start`` and what of it may go; None where it is too young, or not judged yet."""
    row = found_run(connection, run)
    ranks = connection.execute(_RANKS, {"of_run": row.key}).scalars().all()
    series = connection.execute(_SERIES, {"of_run": row.key}).scalars().all()
    size = PIECE_VALUES // max(len(ranks) * (len(series) + 1), 1)
    # A bucket that still grows is left alone.
    stop = min(start + min(max(size // FACTOR, 1) * FACTOR, PIECE_STEPS), row.length // FACTOR * FACTOR)
    whole = Whole(row.key, ranks, series, start, stop)
    if stop <= start or not _is_judged(connection, row, stop) or not _is_old(connection, row, whole, before):
        return None, []
    return whole, _gaps(whole, _kept(connection, whole))


def _is_judged(connection: Connection, run: Row[Any], stop: int) -> bool:
    """Whether what the judge has yet to read lies beyond: it reads the updates of rank 0 in order."""
    judged = connection.execute(_JUDGED, {"of_run": run.key}).scalar_one_or_none() or 0
    return bool(run.attempted - judged <= max(run.last_step + 1 - stop, 0))


def _is_old(connection: Connection, run: Row[Any], whole: Whole, before: float) -> bool:
    """By the trainer's clock and by ours: one of them may be off.

    By ours what is so much older than the newest update as the trainer's clock says, which came when we last heard.
    """
    found = [
        connection.execute(select(func.max(table.c.at)).where(*within(table, whole))).scalar_one()
        for table in (tables.step, tables.sample, tables.tally)
    ]
    youngest = max((at for at in found if at is not None), default=None)
    if youngest is None:
        return True
    newest = [connection.execute(_NEWEST, {"of_run": whole.run, "of_rank": rank}).scalar() for rank in whole.ranks]
    told_at = max((at for at in newest if at is not None), default=youngest)
    return bool(max(youngest, run.last_seen_at - (told_at - youngest)) < before)


def _kept(connection: Connection, whole: Whole) -> list[int]:
    """The steps around which everything stays."""
    span = {"of_run": whole.run, "start": whole.start - MARGIN, "end": whole.stop + MARGIN}
    return list(connection.execute(_KEPT, span).scalars())


def _gaps(whole: Whole, kept: Sequence[int]) -> list[Gap]:
    """The steps of the piece that are not around any of ``kept``, in whole buckets of the lowest level.

    Where a value of all ranks comes late its buckets are folded anew from what is exact: that is whole or gone.
    """
    places = range(whole.start // FACTOR, whole.stop // FACTOR)
    held = {place for step in kept for place in range((step - MARGIN) // FACTOR, (step + MARGIN) // FACTOR + 1)}
    found: list[Gap] = []
    for place in places:
        if place in held:
            continue
        first = place * FACTOR
        if found and found[-1].last == first - 1:
            found[-1] = Gap(found[-1].first, first + FACTOR - 1)
        else:
            found.append(Gap(first, first + FACTOR - 1))
    return found


def _remove(connection: Connection, whole: Whole, gap: Gap) -> Removed:
    counted = _count(connection, whole, gap)
    for table in (tables.step, tables.sample, tables.tally, tables.scalar, tables.gathered):
        connection.execute(delete(table).where(*within(table, whole, gap)))
    return counted


def _count(connection: Connection, whole: Whole, gap: Gap) -> Removed:
    def rows(table: Table) -> int:
        counted = select(func.count()).select_from(table).where(*within(table, whole, gap))
        return int(connection.execute(counted).scalar_one())

    def packed(table: Table) -> int:
        sizes = select(func.coalesce(func.sum(func.length(table.c.body)), 0)).where(*within(table, whole, gap))
        return int(connection.execute(sizes).scalar_one())

    updates, values, samples, tallies = map(rows, (tables.step, tables.scalar, tables.sample, tables.tally))
    size = updates * STEP_BYTES + values * VALUE_BYTES + (samples + tallies) * RECORD_BYTES
    return Removed(updates, values, samples, tallies, size + packed(tables.sample) + packed(tables.tally))


def _following(connection: Connection, whole: Whole, removed: Removed) -> int:
    """Where the next piece begins: after one that held nothing further on, for a run may have gaps of millions."""
    held = select(tables.step.c.step).where(*within(tables.step, whole)).limit(1)
    if removed != Removed() or connection.execute(held).first() is not None:
        return whole.stop
    nearest: list[int | None] = [
        connection.execute(query).scalar_one()
        for rank in whole.ranks
        for query in (
            _next(tables.step, whole, rank),
            *(_next(table, whole, rank, kind) for table in (tables.sample, tables.tally) for kind in KINDS[table.name]),
        )
    ]
    following = min((step for step in nearest if step is not None), default=whole.stop)
    return following // FACTOR * FACTOR


def _next(table: Table, whole: Whole, rank: int, kind: str | None = None) -> Select[Any]:
    row = table.c
    query = select(func.min(row.step)).where(row.run == whole.run, row.rank == rank, row.step >= whole.stop)
    return query if kind is None else query.where(row.kind == kind)


_RANKS = (
    select(tables.ledger.c.rank)
    .distinct()
    .join(tables.segment, tables.segment.c.key == tables.ledger.c.segment)
    .where(tables.segment.c.run == bindparam("of_run"))
    .order_by(tables.ledger.c.rank)
)
_NEWEST = (
    select(tables.step.c.at)
    .where(tables.step.c.run == bindparam("of_run"), tables.step.c.rank == bindparam("of_rank"))
    .order_by(tables.step.c.step.desc())
    .limit(1)
)
_SERIES = select(tables.series.c.key).where(tables.series.c.run == bindparam("of_run"))
_JUDGED = select(tables.judgement.c.updates).where(tables.judgement.c.run == bindparam("of_run"))
_event, _finding, _apart = tables.event.c, tables.finding.c, tables.disagreement.c
_from, _to = bindparam("start", type_=BigInteger), bindparam("end", type_=BigInteger)
_KEPT = union_all(
    select(_event.step).where(
        _event.run == bindparam("of_run"), _event.kind.in_(KEPT_AROUND), _event.step.between(_from, _to)
    ),
    select(_finding.first_step).where(_finding.run == bindparam("of_run"), _finding.first_step.between(_from, _to)),
    select(_finding.last_step).where(_finding.run == bindparam("of_run"), _finding.last_step.between(_from, _to)),
    select(_apart.step)
    .join(tables.segment, tables.segment.c.key == _apart.segment)
    .where(tables.segment.c.run == bindparam("of_run"), _apart.step.between(_from, _to)),
)
