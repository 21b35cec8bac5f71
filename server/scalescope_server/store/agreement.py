"""Where ranks disagree: every update's scale, and whether it was skipped, as each rank told it.

A rank that tells an update is compared with one that has told it before; so, in whatever order they come, two that
differ are found as soon as the second is there. Of each segment the first such update is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, and_, bindparam, case, func, literal, or_, select

from scalescope_server.store import tables
from scalescope_server.store.decoding import Updates
from scalescope_server.store.origin import Origin
from scalescope_server.store.tables import STEP_COLUMNS
from scalescope_server.store.upsert import insert_for
from scalescope_server.store.values import FLAG_BITS, FLAG_MASK

COMPARED = ("scale", "skipped")


def compare(connection: Connection, origin: Origin, records: Sequence[Updates]) -> None:
    """Compare updates that the caller has just told, and that are stored, with what other ranks told of them."""
    if origin.world_size == 1 or not records:
        return
    first = origin.first_step + min(record.first for record in records)
    last = origin.first_step + max(record.first + record.count - 1 for record in records)
    of_caller = {"of_run": origin.run, "of_segment": origin.segment, "of_rank": origin.rank}
    for other, highest in connection.execute(_OTHERS, {**of_caller, "start": first}).all():
        end = min(last, highest)
        found = connection.execute(_COMPARED, {**of_caller, "of_other": other, "start": first, "end": end}).one()
        for name in COMPARED:
            if getattr(found, name) is not None:
                _note(connection, origin.segment, name, getattr(found, name))
        # The farthest of the others has told them all, unless it has gaps.
        if found.told == found.both:
            return


def _note(connection: Connection, segment: int, name: str, step: int) -> None:
    new = insert_for(connection.dialect.name, tables.disagreement).values(segment=segment, name=name, step=step)
    kept = tables.disagreement.c.step
    earlier = new.on_conflict_do_update(
        index_elements=["segment", "name"], set_={"step": new.excluded.step}, where=new.excluded.step < kept
    )
    connection.execute(earlier)


_mine, _other = tables.step.alias(), tables.step.alias()


def _differs(name: str) -> ColumnElement[bool]:
    """Both have told a value, finite or not, and not the same."""
    place = literal(FLAG_MASK << (FLAG_BITS * STEP_COLUMNS.index(name)))
    values = (_mine.c[name], _other.c[name])
    flags = (_mine.c.nonfinite.bitwise_and(place), _other.c.nonfinite.bitwise_and(place))
    told = (or_(value.is_not(None), flag != 0) for value, flag in zip(values, flags, strict=True))
    return and_(*told, or_(func.coalesce(values[0], 0) != func.coalesce(values[1], 0), flags[0] != flags[1]))


_OTHERS = (
    select(tables.ledger.c.rank, tables.ledger.c.highest_step)
    .where(tables.ledger.c.segment == bindparam("of_segment"), tables.ledger.c.rank != bindparam("of_rank"))
    .where(tables.ledger.c.highest_step >= bindparam("start"))
    .order_by(tables.ledger.c.highest_step.desc(), tables.ledger.c.rank)
)
_COMPARED = (
    select(
        func.count(_mine.c.step).label("told"),
        func.count(_other.c.step).label("both"),
        *(func.min(case((_differs(name), _mine.c.step))).label(name) for name in COMPARED),
    )
    .select_from(_mine)
    .outerjoin(
        _other,
        and_(
            _other.c.run == bindparam("of_run"),
            _other.c.rank == bindparam("of_other"),
            _other.c.step == _mine.c.step,
            _other.c.segment == bindparam("of_segment"),
        ),
    )
    .where(_mine.c.run == bindparam("of_run"), _mine.c.rank == bindparam("of_rank"))
    .where(_mine.c.step.between(bindparam("start"), bindparam("end")), _mine.c.segment == bindparam("of_segment"))
)
