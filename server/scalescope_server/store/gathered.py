"""Series over all ranks: the sums that each rank tells of a step, added up as they come.

A point is told with the first of them and stored anew with each one more, so it is right whenever and in whatever
order they come; beside it stands how many ranks it still lacks. The first record that a rank tells of a step is the
one that counts, as in the rank's own series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, bindparam, func, select

from scalescope_server.store import tables
from scalescope_server.store.derived import MISSING, GradientSums, SumsKind, UpdateSums
from scalescope_server.store.origin import Origin
from scalescope_server.store.pruned import pruned_steps
from scalescope_server.store.tables import ALL_RANKS
from scalescope_server.store.transaction import Transaction
from scalescope_server.store.upsert import replace_rows
from scalescope_server.store.values import flags, nullable

Sums = GradientSums | UpdateSums

_SHAPES: dict[SumsKind, type[GradientSums | UpdateSums]] = {"grad": GradientSums, "update": UpdateSums}


@dataclass(frozen=True, slots=True)
class Step:
    """What is known of one step: which ranks have told it, of so many that are expected, and their sums."""

    ranks: tuple[int, ...]
    expected: int
    sums: Sums


def gather(
    transaction: Transaction,
    origin: Origin,
    kind: SumsKind,
    told: Sequence[tuple[int, Sums]],
    *,
    alone: bool,
    sequence: int,
) -> None:
    """Add what the caller tells of some steps to what other ranks have told of them.

    ``alone``: no other rank tells any. ``sequence``: of one of the records.
    """
    told = _kept(transaction.connection, origin, told)
    if not told:
        return
    expected = 1 if alone else _expected(transaction.connection, origin)
    stored = _stored(transaction.connection, origin, kind, [step for step, _ in told])
    changed: dict[int, Step] = {}
    for step, sums in told:
        before = changed.get(step, stored.get(step))
        if before is None:
            changed[step] = Step((origin.rank,), expected, sums)
        elif origin.rank not in before.ranks:
            changed[step] = Step((*before.ranks, origin.rank), max(expected, before.expected), _sum(before.sums, sums))
    _store(transaction.connection, origin, kind, changed)
    values = {step: found for step, each in changed.items() if (found := _values(kind, each))}
    _store_points(transaction, origin, values, sequence)


def _kept(connection: Connection, origin: Origin, told: Sequence[tuple[int, Sums]]) -> Sequence[tuple[int, Sums]]:
    """Without the steps whose sums were pruned: one rank's part would stand in the place of the whole."""
    steps = np.array(sorted({step for step, _ in told}), np.int64)
    gone = set(steps[pruned_steps(connection, origin, steps, of_all=True)].tolist())
    return [(step, sums) for step, sums in told if step not in gone]


def _sum(one: Sums, other: Sums) -> Sums:
    if isinstance(one, GradientSums) and isinstance(other, GradientSums):
        return one.plus(other)
    assert isinstance(one, UpdateSums)
    assert isinstance(other, UpdateSums)
    return one.plus(other)


def _values(kind: SumsKind, step: Step) -> dict[str, float]:
    values = step.sums.values()
    # Where one rank tells all there is nothing to count.
    if values and step.expected > 1:
        values[MISSING[kind]] = float(max(step.expected - len(step.ranks), 0))
    return values


def _expected(connection: Connection, origin: Origin) -> int:
    """How many ranks of the caller's segment tell gradients: all but those that leave everything to others."""
    silent = connection.execute(_SILENT, {"of_segment": origin.segment}).scalar_one()
    return max(origin.world_size - int(silent), 1)


def _stored(connection: Connection, origin: Origin, kind: SumsKind, steps: Sequence[int]) -> Mapping[int, Step]:
    of_caller = {"of_run": origin.run, "of_kind": kind, "of_segment": origin.segment}
    found = connection.execute(_STEPS, {**of_caller, "start": min(steps), "end": max(steps)})
    return {row.step: _step(kind, row) for row in found}


def _step(kind: SumsKind, row: Row[Any]) -> Step:
    ranks = tuple(np.frombuffer(row.ranks, "<i4").tolist())
    return Step(ranks, row.expected, _SHAPES[kind](*np.frombuffer(row.sums, "<f8").tolist()))


def _store(connection: Connection, origin: Origin, kind: SumsKind, changed: Mapping[int, Step]) -> None:
    fixed = {"run": origin.run, "kind": kind, "segment": origin.segment}
    rows = [
        {
            **fixed,
            "step": step,
            "ranks": np.array(each.ranks, "<i4").tobytes(),
            "expected": each.expected,
            "sums": np.array(each.sums, "<f8").tobytes(),
        }
        for step, each in changed.items()
    ]
    replace_rows(connection, tables.gathered, rows)


def _store_points(
    transaction: Transaction, origin: Origin, values: Mapping[int, dict[str, float]], sequence: int
) -> None:
    """Store points over all ranks, and have the levels above them folded anew."""
    names = sorted({name for found in values.values() for name in found})
    keys = transaction.series(origin.run, names, sequence=sequence)
    rows = [
        _point(origin, keys[name], step, np.array([value]))
        for step, found in values.items()
        for name, value in found.items()
    ]
    replace_rows(transaction.connection, tables.scalar, rows)
    revised = transaction.news(origin.run).revised
    for step, found in values.items():
        revised.setdefault(step, set()).update(keys[name] for name in found)


def _point(
    origin: Origin, series: int, step: int, value: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> dict[str, Any]:
    fixed = {"series": series, "rank": ALL_RANKS, "step": step, "segment": origin.segment}
    return {**fixed, "value": nullable(value)[0], "flag": int(flags(value)[0])}


_SILENT = (
    select(func.count())
    .select_from(tables.ledger)
    .where(tables.ledger.c.segment == bindparam("of_segment"), tables.ledger.c.reports.is_(False))
)
_row = tables.gathered.c
_STEPS = select(tables.gathered).where(
    _row.run == bindparam("of_run"),
    _row.kind == bindparam("of_kind"),
    _row.segment == bindparam("of_segment"),
    _row.step.between(bindparam("start"), bindparam("end")),
)
