"""Attempted updates on their way into the tables: rows of ``step``, the user's scalars, and points to fold.

A later record may bring values for updates that are stored already (a loss read late). It fills what was not
there; a value that is there stays, so that roll-ups never have to take anything back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import bindparam, insert, select

from scalescope_server.store import tables
from scalescope_server.store.decoding import Updates
from scalescope_server.store.origin import Origin
from scalescope_server.store.rollup import Points
from scalescope_server.store.tables import STEP_COLUMNS
from scalescope_server.store.transaction import Transaction
from scalescope_server.store.upsert import replace_rows
from scalescope_server.store.values import FLAG_BITS, FLAG_MASK, flags, nullable

Mask = NDArray[np.bool_]

_WHOLE = frozenset({"skipped", "growth_tracker"})


@dataclass(frozen=True, slots=True)
class Counted:
    """What records of updates added: the new ones, and the scale of the last that told something new of it.

    ``scale_step`` is that of the last new update, or of a later one whose scale was told only now; -1 for none.
    """

    attempted: int = 0
    skipped: int = 0
    first: int = -1
    last: int = -1
    scale: float | None = None
    scale_step: int = -1

    def plus(self, other: Counted) -> Counted:
        newest = self if self.scale_step > other.scale_step else other
        firsts = [counted.first for counted in (self, other) if counted.attempted]
        return Counted(
            self.attempted + other.attempted,
            self.skipped + other.skipped,
            min(firsts, default=-1),
            max(self.last, other.last),
            newest.scale,
            newest.scale_step,
        )


@dataclass(slots=True, eq=False)
class _Block:
    """One record, dense: ``values`` float64 [n] and where they are ``present`` for each column of ``step``."""

    sequence: int
    steps: NDArray[np.int64]
    at: NDArray[np.float64]
    values: dict[str, NDArray[np.float64]]
    present: dict[str, Mask]
    own: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]
    new: Mask


def enter_updates(transaction: Transaction, origin: Origin, records: Sequence[Updates]) -> Counted:
    """Store the records of one caller in their order; the answer tells of the updates that were new."""
    counted = Counted()
    fresh: list[_Block] = []
    highest = origin.highest_step
    for record in records:
        block = _dense(record, origin.first_step)
        if block.steps[0] > highest:
            fresh.append(block)
        else:
            _insert_all(transaction, origin, fresh)
            fresh = []
            _merge(transaction, origin, block)
        highest = max(highest, int(block.steps[-1]))
        counted = counted.plus(_counted(block))
    _insert_all(transaction, origin, fresh)
    return counted


def _dense(record: Updates, first_step: int) -> _Block:
    steps = first_step + record.first + np.arange(record.count)
    values, present = {}, {}
    for name, (rows, given) in record.columns.items():
        values[name] = np.full(record.count, np.nan)
        values[name][rows] = given
        present[name] = np.zeros(record.count, np.bool_)
        present[name][rows] = True
    # A trainer without a scaler never skips and need not say so at every step.
    values["skipped"] = np.nan_to_num(values["skipped"]) if "skipped" in values else np.zeros(record.count)
    present["skipped"] = np.ones(record.count, np.bool_)
    own = {name: (steps[rows], given) for name, (rows, given) in record.own.items()}
    return _Block(record.sequence, steps, record.at, values, present, own, np.ones(record.count, np.bool_))


def _counted(block: _Block) -> Counted:
    new = np.flatnonzero(block.new)
    scale, scale_step = _newest_scale(block, new)
    if not new.size:
        return Counted(scale=scale, scale_step=scale_step)
    return Counted(
        len(new),
        int(block.values["skipped"][new].sum()),
        int(block.steps[new[0]]),
        int(block.steps[new[-1]]),
        scale,
        scale_step,
    )


def _newest_scale(block: _Block, new: NDArray[np.int64]) -> tuple[float | None, int]:
    """(scale, step) of the last update that is new or whose scale is; no scale if a new one does not tell it."""
    told = block.present.get("scale", np.zeros(len(block.steps), np.bool_))
    row = max(int(rows[-1]) if rows.size else -1 for rows in (new, np.flatnonzero(told)))
    if row < 0:
        return None, -1
    return (float(block.values["scale"][row]) if told[row] else None), int(block.steps[row])


def _insert_all(transaction: Transaction, origin: Origin, blocks: Sequence[_Block]) -> None:
    rows = [row for block in blocks for row in _rows(block, origin)]
    if rows:
        transaction.connection.execute(_NEW_STEPS, rows)
    for block in blocks:
        _tell(transaction, origin, block)


def _tell(transaction: Transaction, origin: Origin, block: _Block) -> None:
    """Hand on what is present in the block as points, and store the user's own values."""
    told = [name for name in block.values if block.present[name].any()]
    keys = transaction.series(origin.run, [*told, *block.own], sequence=block.sequence)
    points = []
    for name in told:
        mask = block.present[name]
        points.append(Points(keys[name], origin.rank, block.steps[mask], block.values[name][mask]))
    transaction.news(origin.run).points.extend(points)
    own = [Points(keys[name], origin.rank, steps, values) for name, (steps, values) in block.own.items()]
    transaction.add_scalars(origin.run, origin.segment, [p for p in own if len(p.steps)])


def _rows(block: _Block, origin: Origin) -> list[dict[str, Any]]:
    nonfinite = np.zeros(len(block.steps), np.int64)
    columns: dict[str, list[Any]] = {"step": block.steps.tolist(), "at": block.at.tolist()}
    for place, name in enumerate(STEP_COLUMNS):
        if name not in block.values:
            columns[name] = [None] * len(block.steps)
            continue
        nonfinite |= np.where(block.present[name], flags(block.values[name]), 0) << (FLAG_BITS * place)
        column = nullable(block.values[name])
        columns[name] = [None if v is None else int(v) for v in column] if name in _WHOLE else column
    columns["nonfinite"] = nonfinite.tolist()
    fixed = {"run": origin.run, "rank": origin.rank, "segment": origin.segment}
    return [{**fixed, **dict(zip(columns, row, strict=True))} for row in zip(*columns.values(), strict=True)]


def _merge(transaction: Transaction, origin: Origin, block: _Block) -> None:
    """Store a block that may meet rows that are there; only what was not there counts as told."""
    stored = _stored_rows(transaction, origin, block)
    rows = _rows(block, origin)
    for i, row in enumerate(rows):
        before = stored.get(row["step"])
        if before is not None:
            block.new[i] = False
            _fill(block, i, row, before)
    replace_rows(transaction.connection, tables.step, rows)
    block.own = _untold(transaction, origin, block)
    _tell(transaction, origin, block)


def _fill(block: _Block, i: int, row: dict[str, Any], before: dict[str, Any]) -> None:
    """Make ``row`` what ``before`` becomes with the block's values in its gaps."""
    row["at"] = before["at"]
    nonfinite = before["nonfinite"]
    for place, name in enumerate(STEP_COLUMNS):
        mask = FLAG_MASK << (FLAG_BITS * place)
        if before[name] is None and not nonfinite & mask:
            nonfinite |= row["nonfinite"] & mask
        else:
            row[name] = before[name]
            if name in block.present:
                block.present[name][i] = False
    row["nonfinite"] = nonfinite


def _stored_rows(transaction: Transaction, origin: Origin, block: _Block) -> dict[int, dict[str, Any]]:
    found = transaction.connection.execute(_STORED, _range(origin, block.steps)).mappings()
    return {row["step"]: dict(row) for row in found}


def _untold(
    transaction: Transaction, origin: Origin, block: _Block
) -> dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """The user's values in the block for which nothing is stored yet."""
    keys = transaction.series(origin.run, list(block.own), sequence=block.sequence)
    kept = {}
    for name, (steps, values) in block.own.items():
        found = transaction.connection.execute(
            _SCALAR_STEPS, {**_range(origin, block.steps), "of_series": keys[name]}
        ).scalars()
        mask = ~np.isin(steps, list(found))
        kept[name] = (steps[mask], values[mask])
    return kept


def _range(origin: Origin, steps: NDArray[np.int64]) -> dict[str, int]:
    return {
        "of_run": origin.run,
        "of_rank": origin.rank,
        "of_segment": origin.segment,
        "start": int(steps[0]),
        "end": int(steps[-1]),
    }


_NEW_STEPS = insert(tables.step)
_STORED = select(tables.step).where(
    tables.step.c.run == bindparam("of_run"),
    tables.step.c.rank == bindparam("of_rank"),
    tables.step.c.segment == bindparam("of_segment"),
    tables.step.c.step.between(bindparam("start"), bindparam("end")),
)
_SCALAR_STEPS = select(tables.scalar.c.step).where(
    tables.scalar.c.series == bindparam("of_series"),
    tables.scalar.c.rank == bindparam("of_rank"),
    tables.scalar.c.segment == bindparam("of_segment"),
    tables.scalar.c.step.between(bindparam("start"), bindparam("end")),
)
