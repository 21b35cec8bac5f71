"""How each rank of the newest start fares, and where they disagree."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, select

from scalescope_server.store import tables
from scalescope_server.store.origin import ledger_of
from scalescope_server.store.records import Disagreement, LedgerRow, Opinion, RankRow, RankState, Single
from scalescope_server.store.tables import STEP_COLUMNS
from scalescope_server.store.values import FLAG_BITS, FLAG_MASK, restored, scale_of

# More ranks than this that have never called are told as a number.
MAX_ABSENT = 64
# A rank stalls when it closes no update for so many times as long as one takes, and no sooner than it would be silent.
STALLED_UPDATES = 5.0
MAX_DISAGREEMENTS = 16


def read_ranks(connection: Connection, run: Row[Any], silent_before: float, now: float) -> list[RankRow]:
    """The ranks of the newest segment in order; those that have never called too, the first ``MAX_ABSENT`` of them."""
    found = connection.execute(_NEWEST, {"of_run": run.key}).all()
    if not found:
        return []
    stalled_before = min(silent_before, now - STALLED_UPDATES * _usual_s(connection, run.key, run.levels))
    ranks = [_rank(row, silent_before, stalled_before) for row in found]
    front = max((rank.last_step for rank in ranks if rank.last_step is not None), default=None)
    ranks = [_behind(rank, front) for rank in ranks]
    absent = sorted(set(range(min(found[0].world_size, len(found) + MAX_ABSENT))) - {rank.rank for rank in ranks})
    missing = [_absent(rank, found[0].segment_id) for rank in absent]
    return sorted([*ranks, *missing], key=lambda rank: rank.rank)


def read_disagreements(connection: Connection, run: int) -> list[Disagreement]:
    """The first update of each segment at which its ranks told another scale or skip, in order."""
    found = connection.execute(_DISAGREEMENTS, {"of_run": run}).all()
    return [Disagreement(row.name, row.step, row.segment_id, _opinions(connection, run, row)) for row in found]


def delivery_of(stored: Row[Any]) -> LedgerRow:
    """The delivery of a row of ``ledger`` beside the id of its segment, ``segment_id``."""
    ledger = ledger_of(stored.ranges)
    return LedgerRow(
        segment=stored.segment_id,
        rank=stored.rank,
        received=ledger.received,
        duplicate=stored.duplicate,
        dropped=max(stored.dropped, stored.dropped_numbers),
        lost=max(ledger.missing - stored.dropped_numbers, 0),
        highest=ledger.highest,
        last_seen_at=stored.last_seen_at,
    )


def _rank(row: Row[Any], silent_before: float, stalled_before: float) -> RankRow:
    delivery = delivery_of(row)
    last = max(row.highest_step, -1 if row.progress_step is None else row.progress_step)
    return RankRow(
        rank=row.rank,
        segment=row.segment_id,
        state=_state(row, silent_before, stalled_before),
        last_step=last if last >= 0 else None,
        lag=None,
        attempted=row.attempted,
        skipped=row.skipped,
        scale=scale_of(row.scale, row.scale_flag),
        received=delivery.received,
        dropped=delivery.dropped,
        lost=delivery.lost,
        pending=row.pending,
        sent_bytes=row.sent_bytes,
        bytes_per_update=_per_update(row, last),
        thread_cpu_s=row.thread_cpu_s,
        last_seen_at=row.last_seen_at,
        progress_at=row.progress_at,
    )


def _state(row: Row[Any], silent_before: float, stalled_before: float) -> RankState:
    if row.ending is not None:
        return "crashed" if row.ending == "crashed" else "finished"
    if row.last_seen_at < silent_before:
        return "silent"
    return "stalled" if row.progress_at is not None and row.progress_at < stalled_before else "running"


def _per_update(row: Row[Any], last: int) -> float | None:
    updates = last + 1 - row.first_step
    return row.sent_bytes / updates if row.sent_bytes and updates > 0 else None


def _behind(rank: RankRow, front: int | None) -> RankRow:
    if front is None or rank.last_step is None:
        return rank
    return RankRow(
        **{name: getattr(rank, name) for name in RankRow.__struct_fields__} | {"lag": front - rank.last_step}
    )


def _absent(rank: int, segment: str) -> RankRow:
    return RankRow(rank=rank, segment=segment, state="absent")


def _usual_s(connection: Connection, run: int, level: int) -> float:
    """How long an update of rank 0 takes on average, 0 where that was not told."""
    row = tables.rollup.c
    times = (
        select(row.sum, row.n)
        .join(tables.series, tables.series.c.key == row.series)
        .where(tables.series.c.run == run, tables.series.c.name == "step_ms", row.rank == 0, row.level == level)
    )
    found = connection.execute(times).all()
    # Added up here: a sum that leaves the range of floats is an error on Postgres.
    total = sum(float(row.sum or 0.0) for row in found)
    return total / max(sum(int(row.n) for row in found), 1) / 1000


def _opinions(connection: Connection, run: int, row: Row[Any]) -> list[Opinion]:
    """What the ranks told of the update, those that say the same together, the most first."""
    place = FLAG_BITS * STEP_COLUMNS.index(row.name)
    of_update = {"of_run": run, "of_segment": row.segment, "at_step": row.step}
    ranks: defaultdict[Single, list[int]] = defaultdict(list)
    for told in connection.execute(_TOLD, of_update):
        value, flag = getattr(told, row.name), told.nonfinite >> place & FLAG_MASK
        if value is not None or flag:
            ranks[_single(float(restored([value], [flag])[0]))].append(told.rank)
    return sorted(
        (Opinion(value, some) for value, some in ranks.items()), key=lambda each: (-len(each.ranks), each.ranks)
    )


def _single(value: float) -> Single:
    return value if value - value == 0 else "nan" if value != value else "inf" if value > 0 else "-inf"


_segment, _ledger, _step = tables.segment.c, tables.ledger.c, tables.step.c
# Where the ranks could not agree one may be in a segment of its own: the others are in that of rank 0.
_of_first = select(func.max(_ledger.segment)).join(tables.segment, _segment.key == _ledger.segment)
_of_first = _of_first.where(_segment.run == bindparam("of_run"), _ledger.rank == 0)
_of_any = select(func.max(_segment.key)).where(_segment.run == bindparam("of_run"))
_NEWEST = (
    select(tables.ledger, _segment.id.label("segment_id"), _segment.first_step, _segment.world_size)
    .join(tables.segment, _segment.key == _ledger.segment)
    .where(_segment.key == func.coalesce(_of_first.scalar_subquery(), _of_any.scalar_subquery()))
    .order_by(_ledger.rank)
)
_DISAGREEMENTS = (
    select(tables.disagreement, _segment.id.label("segment_id"))
    .join(tables.segment, _segment.key == tables.disagreement.c.segment)
    .where(_segment.run == bindparam("of_run"))
    .order_by(tables.disagreement.c.step, tables.disagreement.c.name)
    .limit(MAX_DISAGREEMENTS)
)
_RANKS = select(_ledger.rank).where(_ledger.segment == bindparam("of_segment"))
_TOLD = (
    select(_step.rank, _step.scale, _step.skipped, _step.nonfinite)
    .where(_step.run == bindparam("of_run"), _step.rank.in_(_RANKS))
    .where(_step.step == bindparam("at_step"), _step.segment == bindparam("of_segment"))
    .order_by(_step.rank)
)
