"""One batch on its way into the tables, inside a write transaction.

What the ledger holds already is counted and left alone, so a batch may come any number of times. Everything
else is checked before it is stored; one bad record refuses its whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from scalescope.ledger import Ledger
from scalescope.wire import Bye, Layout, Record
from sqlalchemy import Connection, bindparam, func, insert, select, update

from scalescope_server.store import tables
from scalescope_server.store.agreement import compare
from scalescope_server.store.decoding import Decoded, Happening, Held, Measured, Tallied, Updates, decode
from scalescope_server.store.delivery import Batch, Receipt
from scalescope_server.store.errors import BadRecord
from scalescope_server.store.facts import enter_setups
from scalescope_server.store.layouts import enter_layout
from scalescope_server.store.measured import enter_samples
from scalescope_server.store.origin import Origin, check_last, origin_of
from scalescope_server.store.records import RunId
from scalescope_server.store.tallies import enter_tallies
from scalescope_server.store.totals import note_delivery, note_totals
from scalescope_server.store.transaction import Transaction
from scalescope_server.store.updates import Counted, enter_updates
from scalescope_server.store.windows import enter_windows

# What all ranks tell of the same update, and a run of several ranks shows once.
OF_SCALER = ("skip", "growth", "backoff", "scale_set")

Told = AbstractSet[tuple[int, str]]


def enter_batch(transaction: Transaction, batch: Batch) -> Receipt:
    """Store a batch.

    Raises:
        BadRecord: naming the record; the transaction must be rolled back then.
        Superseded: if it comes by a connection that is not the rank's last.
    """
    origin = origin_of(transaction, batch.hello, batch.received_at)
    check_last(origin, batch.connection)
    ledger, fresh = _fresh(origin.ledger, batch.records)
    _check_end(origin, fresh)
    decoded = [decode(record) for record in fresh]
    counted = _enter(transaction, origin, decoded)
    duplicates = len(batch.records) - len(fresh)
    # Even without a value to fold: updates that tell nothing make the run longer, and then it has another level.
    transaction.news(origin.run)
    origin = replace(origin, ledger=ledger)
    note_delivery(transaction.connection, origin, decoded, counted, duplicates, batch.received_at)
    note_totals(transaction.connection, origin, decoded, counted, batch.received_at)
    return _receipt(batch, origin, decoded, counted, duplicates)


def _fresh(ledger: Ledger, records: Sequence[Record]) -> tuple[Ledger, list[Record]]:
    numbers = [record.sequence for record in records]
    if numbers and ledger.highest < numbers[0] and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return ledger.add_range(numbers[0], numbers[-1]), list(records)
    fresh = []
    for record in records:
        if record.sequence not in ledger:
            ledger = ledger.add(record.sequence)
            fresh.append(record)
    return ledger, fresh


def _check_end(origin: Origin, fresh: Sequence[Record]) -> None:
    """A rank that said Bye has nothing more to tell; what it had numbered before may still come."""
    last = origin.ledger.highest if origin.ended else None
    for record in fresh:
        if last is not None and record.sequence > last:
            message = "expected nothing after Bye: a trainer that goes on begins a segment of its own"
            raise BadRecord(type(record).__name__.lower(), record.sequence, message)
        if isinstance(record, Bye):
            last = record.sequence


def _enter(transaction: Transaction, origin: Origin, decoded: Sequence[Decoded]) -> Counted:
    # A sample's indexes mean what the layouts before it say. Layouts only add parameters, so all of a batch's
    # may go first.
    for record in decoded:
        if isinstance(record, Layout):
            enter_layout(transaction.connection, origin, record)
    enter_samples(transaction, origin, [d for d in decoded if isinstance(d, Measured)])
    enter_tallies(transaction, origin, [d for d in decoded if isinstance(d, Tallied)])
    _enter_events(transaction.connection, origin, [d for d in decoded if isinstance(d, Happening)])
    enter_setups(transaction.connection, origin, [d for d in decoded if isinstance(d, Held)])
    updates = [d for d in decoded if isinstance(d, Updates)]
    counted = enter_updates(transaction, origin, updates)
    compare(transaction.connection, origin, updates)
    enter_windows(transaction.connection, origin, updates)
    for record in decoded:
        if isinstance(record, Bye):
            _end(transaction.connection, origin, record)
    return counted


def _enter_events(connection: Connection, origin: Origin, happenings: Sequence[Happening]) -> None:
    if happenings:
        told = _told_by_others(connection, origin, happenings) if origin.world_size > 1 else frozenset()
        connection.execute(_NEW_EVENTS, [_event_row(origin, happening, told) for happening in happenings])


def _told_by_others(connection: Connection, origin: Origin, happenings: Sequence[Happening]) -> Told:
    """What other ranks of the segment have told already of the steps of some events."""
    steps = [origin.first_step + happening.record.step for happening in happenings]
    of_caller = {"of_run": origin.run, "of_segment": origin.segment, "of_rank": origin.rank}
    found = connection.execute(_TOLD, {**of_caller, "start": min(steps), "end": max(steps)})
    return frozenset((row.step, row.kind) for row in found)


def _event_row(origin: Origin, happening: Happening, told: Told) -> dict[str, Any]:
    record, culprit = happening.record, happening.data.get("parameter")
    return {
        "run": origin.run,
        "step": origin.first_step + record.step,
        "kind": record.kind,
        "rank": origin.rank,
        "segment": origin.segment,
        "at": record.at,
        "data": happening.data,
        "culprit": culprit if record.kind == "skip" and isinstance(culprit, str) else None,
        "of_run": record.kind not in OF_SCALER or (origin.first_step + record.step, record.kind) not in told,
    }


def _end(connection: Connection, origin: Origin, bye: Bye) -> None:
    """Enter the end of one rank. A segment has crashed when any rank has, and finished when all have."""
    of_segment = tables.ledger.c.segment == origin.segment
    of_rank = of_segment & (tables.ledger.c.rank == origin.rank)
    connection.execute(update(tables.ledger).where(of_rank).values(ending=bye.reason))
    going_on = select(func.count()).select_from(tables.ledger).where(of_segment, tables.ledger.c.ending.is_(None))
    if bye.reason == "finished" and connection.execute(going_on).scalar_one():
        return
    mine = tables.segment.c.key == origin.segment
    # The first crash is the cause; the ranks that fall after it only say so.
    not_crashed = tables.segment.c.ending.is_(None) | (tables.segment.c.ending != "crashed")
    ended = {"ending": bye.reason, "ended_at": bye.at, "detail": bye.detail}
    if connection.execute(update(tables.segment).where(mine, not_crashed).values(ended)).rowcount:
        _end_run(connection, origin, bye)


def _end_run(connection: Connection, origin: Origin, bye: Bye) -> None:
    """The run ended if this was its newest segment."""
    newest = select(func.max(tables.segment.c.key)).where(tables.segment.c.run == origin.run)
    if connection.execute(newest).scalar_one() == origin.segment:
        connection.execute(update(tables.run).where(tables.run.c.key == origin.run).values(ending=bye.reason))


def _receipt(batch: Batch, origin: Origin, decoded: Sequence[Decoded], counted: Counted, duplicates: int) -> Receipt:
    told_by_first_rank = origin.rank == 0 and counted.attempted > 0
    after = origin.highest_step + 1
    return Receipt(
        run=RunId(batch.hello.run),
        rank=origin.rank,
        durable=max((record.sequence for record in batch.records), default=origin.ledger.highest),
        stored=len(decoded),
        duplicates=duplicates,
        steps=(counted.first, counted.last + 1) if told_by_first_rank else (after, after),
        samples=sum(isinstance(d, Measured) for d in decoded),
        events=sum(isinstance(d, Happening) for d in decoded),
        ended=any(isinstance(d, Bye) for d in decoded),
    )


_NEW_EVENTS = insert(tables.event)
_TOLD = select(tables.event.c.step, tables.event.c.kind).where(
    tables.event.c.run == bindparam("of_run"),
    tables.event.c.segment == bindparam("of_segment"),
    tables.event.c.rank != bindparam("of_rank"),
    tables.event.c.step.between(bindparam("start"), bindparam("end")),
)
