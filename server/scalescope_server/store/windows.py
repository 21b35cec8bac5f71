"""The facts of windows on their way into the tables: consecutive updates whose facts are alike make one row.

A row goes on from batch to batch for as long as the facts stay the same. What comes late fills the gaps that it
finds; what is told already stays.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from scalescope_server.store import tables
from scalescope_server.store.decoding import Stretch, Updates
from scalescope_server.store.json_text import dumps
from scalescope_server.store.origin import Origin


def enter_windows(connection: Connection, origin: Origin, records: Sequence[Updates]) -> None:
    """Store the facts that came with the updates of one caller."""
    told: list[Stretch] = []
    ended = -1
    for record in records:
        # Usually each goes on where the one before it ended: then all are entered together.
        if record.first != ended:
            _enter(connection, origin, told)
            told = []
        shift, ended = origin.first_step, record.first + record.count
        told += [Stretch(window.first + shift, window.last + shift, window.facts) for window in record.windows]
    _enter(connection, origin, told)


def joined(stored: Sequence[Stretch], new: Sequence[Stretch]) -> list[Stretch]:
    """Both lists, each in order and without overlaps, as one: where they overlap ``stored`` holds.

    Neighbours without a gap between them and with equal facts become one.
    """
    merged: list[Stretch] = []
    for piece in sorted([*stored, *(piece for stretch in new for piece in _uncovered(stretch, stored))]):
        if merged and merged[-1].last + 1 == piece.first and merged[-1].facts == piece.facts:
            merged[-1] = merged[-1]._replace(last=piece.last)
        else:
            merged.append(piece)
    return merged


def _uncovered(stretch: Stretch, stored: Sequence[Stretch]) -> Iterator[Stretch]:
    """The parts of ``stretch`` that lie in none of ``stored``."""
    first = stretch.first
    nearest = bisect_right(stored, first, key=lambda taken: taken.first) - 1
    for taken in stored[max(nearest, 0) :]:
        if taken.first > stretch.last:
            break
        if taken.first > first:
            yield stretch._replace(first=first, last=taken.first - 1)
        first = max(first, taken.last + 1)
    if first <= stretch.last:
        yield stretch._replace(first=first)


def _enter(connection: Connection, origin: Origin, new: Sequence[Stretch]) -> None:
    if not new:
        return
    of_caller = {"of_segment": origin.segment, "of_rank": origin.rank}
    # Those that touch count too: they may go on.
    found = connection.execute(_TOUCHING, {**of_caller, "start": new[0].first - 1, "end": new[-1].last + 1})
    facts = {stretch.facts for stretch in new}
    stored = [_known(row.first_step, row.last_step, dumps(row.data), facts) for row in found]
    becomes = joined(stored, new)
    if gone := set(stored).difference(becomes):
        connection.execute(_GONE, [{**of_caller, "start": stretch.first} for stretch in gone])
    if rows := [_row(origin, stretch) for stretch in sorted(set(becomes).difference(stored))]:
        connection.execute(_NEW, rows)


def _known(first: int, last: int, text: str, facts: Collection[str]) -> Stretch:
    """A stored stretch, its text only if it is one of ``facts``: else it joins nothing, and many may be touched."""
    return Stretch(first, last, text if text in facts else f"as stored from {first}")


def _row(origin: Origin, stretch: Stretch) -> dict[str, Any]:
    return {
        "segment": origin.segment,
        "rank": origin.rank,
        "first_step": stretch.first,
        "run": origin.run,
        "last_step": stretch.last,
        "data": json.loads(stretch.facts),
    }


_window = tables.window.c
_of_caller = (_window.segment == bindparam("of_segment"), _window.rank == bindparam("of_rank"))
_NEW = insert(tables.window)
_GONE = delete(tables.window).where(*_of_caller, _window.first_step == bindparam("start"))
# Rows of one caller do not overlap, so only the last that begins before the start can reach it.
_begun = select(func.max(_window.first_step)).where(*_of_caller, _window.first_step <= bindparam("start"))
_TOUCHING = (
    select(_window.first_step, _window.last_step, _window.data)
    .where(*_of_caller, _window.first_step >= func.coalesce(_begun.scalar_subquery(), bindparam("start")))
    .where(_window.first_step <= bindparam("end"), _window.last_step >= bindparam("start"))
    .order_by(_window.first_step)
)
