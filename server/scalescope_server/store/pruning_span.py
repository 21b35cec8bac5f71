"""The piece of a run that retention looks at, and which rows of each table lie in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import ColumnElement, Table

from scalescope_server.store import tables

# Probes stay: they are few, and made by hand.
KINDS = {"sample": ("grad", "weight", "forward", "grad_output"), "tally": ("parameter", "module")}


class Gap(NamedTuple):
    """Steps ``first`` to ``last``, both in it, of which only roll-ups stay."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Whole:
    """What of a run is looked at: its ranks, its series, and the piece's steps [start, stop)."""

    run: int
    ranks: Sequence[int]
    series: Sequence[int]
    start: int
    stop: int


def within(table: Table, whole: Whole, gap: Gap | None = None) -> tuple[ColumnElement[bool], ...]:
    """The rows of a table in the gap, or in the piece; what is of all ranks among those of values."""
    first, last = gap or Gap(whole.start, whole.stop - 1)
    row = table.c
    steps = row.step.between(first, last)
    if table is tables.scalar:
        return row.series.in_(whole.series), row.rank.in_([*whole.ranks, tables.ALL_RANKS]), steps
    if table is tables.gathered:
        return row.run == whole.run, row.kind.in_(("grad", "update")), steps
    kinds = () if table is tables.step else (row.kind.in_(KINDS[table.name]),)
    return row.run == whole.run, *kinds, row.rank.in_(whole.ranks), steps
