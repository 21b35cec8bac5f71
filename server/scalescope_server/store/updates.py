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
from sqlalchemy import Row, bindparam, select

from scalescope_server.store import tables
from scalescope_server.store.bulk import insert_rows, merge_rows
from scalescope_server.store.decoding import Updates
from scalescope_server.store.origin import Origin
from scalescope_server.store.pruned import pruned_steps
from scalescope_server.store.rollup import Points
from scalescope_server.store.tables import STEP_COLUMNS
from scalescope_server.store.transaction import Transaction
from scalescope_server.store.values import FLAG_BITS, FLAG_MASK, flags

Mask = NDArray[np.bool_]


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
    """Blocks of which nothing is stored yet."""
    if blocks:
        insert_rows(transaction.connection, tables.step, _columns(blocks, origin))
        _tell(transaction, origin, blocks)


def _tell(transaction: Transaction, origin: Origin, blocks: Sequence[_Block]) -> None:
    """Hand on what is present in the blocks as points, and store the user's own values."""
    points, own = [], []
    for block in blocks:
        told = [name for name in block.values if block.present[name].any()]
        keys = transaction.series(origin.run, [*told, *block.own], sequence=block.sequence)
        for name in told:
            mask = block.present[name]
            points.append(Points(keys[name], origin.rank, block.steps[mask], block.values[name][mask]))
        own += [Points(keys[name], origin.rank, steps, values) for name, (steps, values) in block.own.items()]
    transaction.news(origin.run).points.extend(points)
    transaction.add_scalars(origin.run, origin.segment, [p for p in own if len(p.steps)])


def _columns(blocks: Sequence[_Block], origin: Origin) -> dict[str, NDArray[Any]]:
    """The columns of the rows; NaN where no value is, or one that is not finite, as the flags beside them tell."""
    counts = [len(block.steps) for block in blocks]
    rows = sum(counts)
    columns: dict[str, NDArray[Any]] = {
        "run": np.full(rows, origin.run),
        "rank": np.full(rows, origin.rank),
        "step": np.concatenate([block.steps for block in blocks]),
        "segment": np.full(rows, origin.segment),
        "at": np.concatenate([block.at for block in blocks]),
    }
    nonfinite = np.zeros(rows, np.int64)
    for place, name in enumerate(STEP_COLUMNS):
        if any(name in block.values for block in blocks):
            values, present = _column(blocks, name)
            nonfinite |= np.where(present, flags(values), 0) << (FLAG_BITS * place)
            columns[name] = values
    return columns | {"nonfinite": nonfinite}


def _column(blocks: Sequence[_Block], name: str) -> tuple[NDArray[np.float64], Mask]:
    """(values, NaN where there is none; where there is one) of all blocks."""
    values = [block.values.get(name, np.full(len(block.steps), np.nan)) for block in blocks]
    present = [block.present.get(name, np.zeros(len(block.steps), np.bool_)) for block in blocks]
    return np.concatenate(values), np.concatenate(present)


def _merge(transaction: Transaction, origin: Origin, block: _Block) -> None:
    """Store a block that may meet rows that are there; only what was not there counts as told."""
    columns = _columns([block], origin)
    stored = transaction.connection.execute(_STORED, _range(origin, block.steps)).all()
    if stored:
        _fill(block, columns, stored)
    gone = pruned_steps(transaction.connection, origin, block.steps)
    if gone.any():
        columns = _leave_out(block, columns, gone)
    merge_rows(transaction.connection, tables.step, columns)
    block.own = _untold(transaction, origin, block)
    _tell(transaction, origin, [block])


def _fill(block: _Block, columns: dict[str, NDArray[Any]], stored: Sequence[Row[Any]]) -> None:
    """Make ``columns`` what the ``stored`` rows become with the block's values in their gaps."""
    rows = np.array([row.step for row in stored]) - block.steps[0]
    block.new[rows] = False
    columns["at"][rows] = [row.at for row in stored]
    was_nonfinite = np.array([row.nonfinite for row in stored])
    nonfinite = columns["nonfinite"]
    for place, name in enumerate(STEP_COLUMNS):
        mask = FLAG_MASK << (FLAG_BITS * place)
        # Null becomes NaN.
        before = np.array([getattr(row, name) for row in stored], np.float64)
        told = ~np.isnan(before) | (was_nonfinite & mask != 0)
        kept = rows[told]
        columns.setdefault(name, np.full(len(block.steps), np.nan))[kept] = before[told]
        nonfinite[kept] = (nonfinite[kept] & ~mask) | (was_nonfinite[told] & mask)
        if name in block.present:
            block.present[name][kept] = False


def _leave_out(block: _Block, columns: dict[str, NDArray[Any]], gone: Mask) -> dict[str, NDArray[Any]]:
    """The columns without the updates whose values were removed: what they were is not known, but they are told."""
    block.new[gone] = False
    for present in block.present.values():
        present[gone] = False
    block.own = {
        name: (steps[kept], values[kept])
        for name, (steps, values) in block.own.items()
        for kept in [~gone[steps - block.steps[0]]]
    }
    return {name: column[~gone] for name, column in columns.items()}


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
