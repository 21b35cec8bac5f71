"""What the rows of ``ledger`` and ``run`` sum up, kept in the transaction that stores what they sum up.

The statements are built once: building one costs more than running it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, case, update

from scalescope_server.store import tables
from scalescope_server.store.decoding import Decoded, Happening, Measured, Tallied, Updates
from scalescope_server.store.origin import Origin, packed_ledger
from scalescope_server.store.updates import Counted
from scalescope_server.store.upsert import larger
from scalescope_server.store.values import scale_key


def note_delivery(
    connection: Connection,
    origin: Origin,
    decoded: Sequence[Decoded],
    counted: Counted,
    duplicates: int,
    now: float,
) -> None:
    """Enter the ledger that ``origin`` has by now, after ``decoded`` and so many duplicates came at ``now``, and what
    it attempted.
    """
    scale, scale_flag = scale_key(counted.scale)
    told = {
        "of_segment": origin.segment,
        "of_rank": origin.rank,
        "new_ranges": packed_ledger(origin.ledger),
        "new_duplicates": duplicates,
        "new_dropped": sum(_dropped(d) for d in decoded if isinstance(d, Happening)),
        "new_step": _last(origin, [d for d in decoded if isinstance(d, Updates)]),
        "new_sample": _last(origin, [d for d in decoded if isinstance(d, Measured | Tallied)]),
        "new_seen_at": now,
        "new_attempted": counted.attempted,
        "new_skipped": counted.skipped,
        "new_scale": scale,
        "new_scale_flag": scale_flag,
        "new_scale_step": counted.scale_step,
    }
    connection.execute(_DELIVERY, told)


def note_totals(
    connection: Connection, origin: Origin, decoded: Sequence[Decoded], counted: Counted, now: float
) -> None:
    """Add what is new to the run's counts; those of updates are of rank 0."""
    of_first_rank = counted if origin.rank == 0 else Counted()
    scale, scale_flag = scale_key(of_first_rank.scale)
    told = {
        "of_run": origin.run,
        "new_attempted": of_first_rank.attempted,
        "new_skipped": of_first_rank.skipped,
        "new_last": of_first_rank.last,
        "new_scale": scale,
        "new_scale_flag": scale_flag,
        "new_scale_step": of_first_rank.scale_step,
        "new_next": _last(origin, [d for d in decoded if isinstance(d, Updates)]) + 1,
        "new_length": _last(origin, decoded) + 1,
        "new_seen_at": now,
    }
    connection.execute(_TOTALS, told)


def _last(origin: Origin, decoded: Sequence[Decoded]) -> int:
    """The highest step, on the run's axis, of an update, sample or tally; -1 for none.

    Not of events: a single one far ahead would make every view of the run a few points wide.
    """
    last = -1
    for record in decoded:
        if isinstance(record, Updates):
            last = max(last, origin.first_step + record.first + record.count - 1)
        elif isinstance(record, Measured | Tallied):
            last = max(last, origin.first_step + record.record.step)
    return last


def _dropped(happening: Happening) -> int:
    """How many records an event says were dropped after they had been numbered."""
    told = happening.data.get("messages") if happening.record.kind == "dropped" else 0
    return told if isinstance(told, int) and 0 <= told < 2**53 else 0


_ledger, _run = tables.ledger.c, tables.run.c

_newer_of_rank = (_ledger.scale_step <= bindparam("new_scale_step")) & (bindparam("new_scale_step") >= 0)
_DELIVERY = (
    update(tables.ledger)
    .where(_ledger.segment == bindparam("of_segment"), _ledger.rank == bindparam("of_rank"))
    .values(
        ranges=bindparam("new_ranges"),
        duplicate=_ledger.duplicate + bindparam("new_duplicates"),
        dropped_numbers=_ledger.dropped_numbers + bindparam("new_dropped"),
        highest_step=larger(_ledger.highest_step, bindparam("new_step")),
        highest_sample=larger(_ledger.highest_sample, bindparam("new_sample")),
        # Not the latest that was ever told: our clock may have been ahead.
        last_seen_at=bindparam("new_seen_at"),
        attempted=_ledger.attempted + bindparam("new_attempted"),
        skipped=_ledger.skipped + bindparam("new_skipped"),
        scale=case((_newer_of_rank, bindparam("new_scale")), else_=_ledger.scale),
        scale_flag=case((_newer_of_rank, bindparam("new_scale_flag")), else_=_ledger.scale_flag),
        scale_step=larger(_ledger.scale_step, bindparam("new_scale_step")),
    )
)
# At the last update itself too: its scale may be told later than the update.
_newer_scale = (_run.last_step <= bindparam("new_scale_step")) & (bindparam("new_scale_step") >= 0)
_TOTALS = (
    update(tables.run)
    .where(_run.key == bindparam("of_run"))
    .values(
        attempted=_run.attempted + bindparam("new_attempted"),
        skipped=_run.skipped + bindparam("new_skipped"),
        scale=case((_newer_scale, bindparam("new_scale")), else_=_run.scale),
        scale_flag=case((_newer_scale, bindparam("new_scale_flag")), else_=_run.scale_flag),
        last_step=larger(_run.last_step, bindparam("new_last")),
        next_step=larger(_run.next_step, bindparam("new_next")),
        length=larger(_run.length, bindparam("new_length")),
        last_seen_at=bindparam("new_seen_at"),
    )
)
