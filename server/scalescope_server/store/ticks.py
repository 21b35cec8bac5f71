"""Updates as rules are evaluated over them: in order past a position, and no more of them than was asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, bindparam, select

from scalescope_server.store import tables
from scalescope_server.store.axis import END, segments_of
from scalescope_server.store.derived import MERGED_SERIES
from scalescope_server.store.history import told_by_all
from scalescope_server.store.judging import Position
from scalescope_server.store.number_columns import read_columns
from scalescope_server.store.tables import ALL_RANKS, STEP_COLUMNS
from scalescope_server.store.values import FLAG_BITS, FLAG_MASK

# What follows from ``skipped`` and is not stored, and what is told by events.
_ATTEMPTED, _APPLIED = "attempted", "applied"
_DROPPED = "dropped"
# By flag (see ``values``); what is finite and null was not told.
_NONFINITE = np.array([np.nan, np.nan, np.inf, -np.inf])
_NO_STEPS, _NO_VALUES = np.empty(0, np.int64), np.empty(0)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read of each update. ``series``: names, of rank 0; ``ranks``: those that are read of every rank.

    ``layers``: whether layers are read beside it.
    """

    series: frozenset[str] = frozenset()
    ranks: frozenset[str] = frozenset()
    layers: bool = False


class Column(NamedTuple):
    """A series at consecutive updates: ``values`` float64 [n], ``told`` bool [n]; where it was not told stands NaN."""

    values: NDArray[np.float64]
    told: NDArray[np.bool_]


@dataclass(slots=True)
class Updates:
    """Consecutive updates of one segment: ``step`` int64 [n], ``at`` float64 [n] by the trainer's clock.

    ``values``: by series. ``ranks``: by series and rank, where the run has several.
    """

    segment: int
    step: NDArray[np.int64]
    at: NDArray[np.float64]
    values: dict[str, Column] = field(default_factory=dict)
    ranks: dict[str, dict[int, Column]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.step)

    def segments(self) -> NDArray[np.int64]:
        """``segment`` at each of them."""
        return np.full(len(self.step), self.segment, np.int64)


def read_updates(
    connection: Connection,
    run: Row[Any],
    wanted: Wanted,
    after: Position,
    until: Position,
    limit: int,
    silent_before: float,
) -> list[Updates]:
    """At most ``limit`` updates of rank 0 beyond ``after`` up to ``until``, the last in it: segment by segment.

    Where other ranks are read, those come first that all ranks have told which are alive (seen since
    ``silent_before``), and the others wait.
    """
    found: list[Updates] = []
    for segment in segments_of(connection, run.key, after.segment, until.segment):
        left = limit - sum(map(len, found))
        beyond = after.step if segment.ordinal == after.segment else -1
        last = until.step if segment.ordinal == until.segment else END
        told = told_by_all(connection, segment.key, silent_before) if _reads_others(run, wanted) else None
        upto = last if told is None else min(told, last)
        part = _of_segment(connection, run, segment, wanted, (beyond, upto, left))
        if len(part):
            found.append(part)
        if upto < last or len(part) == left:
            break
    return found


def _reads_others(run: Row[Any], wanted: Wanted) -> bool:
    return run.world_size > 1 and (wanted.layers or bool(wanted.ranks or wanted.series.intersection(MERGED_SERIES)))


def _of_segment(
    connection: Connection, run: Row[Any], segment: Row[Any], wanted: Wanted, span: tuple[int, int, int]
) -> Updates:
    beyond, last, limit = span
    names = sorted(_columns_of(wanted.series))
    row = tables.step.c
    query = (
        select(row.step, row.at, row.nonfinite, *(row[name] for name in names))
        .where(row.run == run.key, row.rank == 0, row.step > beyond, row.step <= last, row.segment == segment.key)
        .order_by(row.step)
        .limit(limit)
    )
    steps, at, nonfinite, *columns = read_columns(connection, query)
    part = Updates(segment.ordinal, steps, at)
    if not len(part):
        return part
    for name, column in zip(names, columns, strict=True):
        part.values[name] = _restored(name, column, nonfinite)
    part.values |= _following(part, wanted.series)
    asked = {"of_run": run.key, "of_segment": segment.key, "first": int(steps[0]), "last": int(steps[-1])}
    part.values |= _scalars(connection, run, part, wanted.series, asked)
    if run.world_size > 1 and wanted.ranks:
        _add_ranks(connection, part, wanted.ranks, asked)
    return part


def _columns_of(names: Iterable[str]) -> set[str]:
    """The columns that the series are read from."""
    return {"skipped" if name == _APPLIED else name for name in names}.intersection(STEP_COLUMNS)


def _restored(name: str, column: NDArray[Any], nonfinite: NDArray[np.int64]) -> Column:
    """A column with NaN and infinities in their places."""
    values = column.astype(np.float64)
    told = ~np.isnan(values)
    if nonfinite.any():
        flags = nonfinite >> (FLAG_BITS * STEP_COLUMNS.index(name)) & FLAG_MASK
        values = np.where(told, values, _NONFINITE[flags])
        told |= flags > 0
    return Column(values, told)


def _following(part: Updates, names: Iterable[str]) -> dict[str, Column]:
    """The series that follow from others and are not stored."""
    found = {}
    if _APPLIED in names:
        skipped = part.values["skipped"]
        found[_APPLIED] = Column(1.0 - skipped.values, skipped.told)
    if _ATTEMPTED in names:
        found[_ATTEMPTED] = Column(np.ones(len(part)), np.ones(len(part), np.bool_))
    return found


def _scalars(
    connection: Connection, run: Row[Any], part: Updates, names: Iterable[str], asked: Mapping[str, int]
) -> dict[str, Column]:
    """The series that are no columns of an update."""
    own = sorted(set(names).difference(STEP_COLUMNS, (_APPLIED, _ATTEMPTED)))
    if not own:
        return {}
    keys = {r.key: r.name for r in connection.execute(_KEYS, {"of_run": run.key, "names": own})}
    merged = {key for key, name in keys.items() if run.world_size > 1 and name in MERGED_SERIES}
    found: dict[str, Column] = {}
    for rank, some in ((ALL_RANKS, merged), (0, keys.keys() - merged)):
        of_rank = {**asked, "of_series": sorted(some), "of_rank": rank}
        for key, told in (_by_series(*read_columns(connection, _SCALARS, of_rank)) if some else {}).items():
            found[keys[key]] = _placed(part.step, *told)
    if _DROPPED in own:
        found[_DROPPED] = _placed(part.step, *_drops(connection, asked, part.step))
    return {name: found.get(name) or _placed(part.step, _NO_STEPS, _NO_VALUES) for name in own}


def _by_series(
    series: NDArray[np.int64], steps: NDArray[np.int64], numbers: NDArray[np.float64], flags: NDArray[np.int64]
) -> dict[int, tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """(updates, values) by series."""
    # What is no number is stored as its flag.
    values = np.where(np.isnan(numbers), _NONFINITE[flags], numbers)
    return {key: (steps[series == key], values[series == key]) for key in np.unique(series).tolist()}


def _drops(
    connection: Connection, asked: Mapping[str, int], steps: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(updates, records that the hook said at each that it had dropped): mostly none, so that a sum comes back to 0."""
    found = defaultdict(float, dict.fromkeys(steps.tolist(), 0.0))
    for step, data in connection.execute(_DROPS, asked):
        messages = data.get("messages")
        found[step] += messages if isinstance(messages, int) else 0
    return np.array(list(found), np.int64), np.array(list(found.values()), np.float64)


def _placed(steps: NDArray[np.int64], told: NDArray[np.int64], values: NDArray[np.float64]) -> Column:
    """Values by step as a column. What was measured of an update that is not stored has no place in it."""
    column = Column(np.full(len(steps), np.nan), np.zeros(len(steps), np.bool_))
    places = np.minimum(np.searchsorted(steps, told), len(steps) - 1)
    there = steps[places] == told
    column.values[places[there]] = values[there]
    column.told[places[there]] = True
    return column


def _add_ranks(connection: Connection, part: Updates, names: Iterable[str], asked: Mapping[str, int]) -> None:
    columns = sorted(_columns_of(names))
    row = tables.step.c
    query = (
        select(row.rank, row.step, row.nonfinite, *(row[name] for name in columns))
        # The key of the table begins with them.
        .where(row.run == asked["of_run"], row.rank.in_(_RANKS.where(tables.ledger.c.segment == asked["of_segment"])))
        .where(row.step.between(asked["first"], asked["last"]), row.segment == asked["of_segment"])
        .order_by(row.rank, row.step)
    )
    ranks, steps, nonfinite, *values = read_columns(connection, query)
    for rank in np.unique(ranks).tolist():
        own = ranks == rank
        told = {
            name: _restored(name, column[own], nonfinite[own]) for name, column in zip(columns, values, strict=True)
        }
        if _APPLIED in names:
            told[_APPLIED] = Column(1.0 - told["skipped"].values, told["skipped"].told)
        for name in told.keys() & set(names):
            by_rank = part.ranks.setdefault(name, {})
            by_rank[rank] = _aligned(part.step, steps[own], told[name])


def _aligned(steps: NDArray[np.int64], own: NDArray[np.int64], column: Column) -> Column:
    """The column of updates ``own`` at ``steps``."""
    if np.array_equal(steps, own):
        return column
    known = column.told
    return _placed(steps, own[known], column.values[known])


_scalar, _event = tables.scalar.c, tables.event.c
_KEYS = select(tables.series.c.name, tables.series.c.key).where(
    tables.series.c.run == bindparam("of_run"), tables.series.c.name.in_(bindparam("names", expanding=True))
)
_SCALARS = (
    select(_scalar.series, _scalar.step, _scalar.value, _scalar.flag)
    .where(_scalar.series.in_(bindparam("of_series", expanding=True)), _scalar.rank == bindparam("of_rank"))
    .where(_scalar.segment == bindparam("of_segment"))
    .where(_scalar.step.between(bindparam("first"), bindparam("last")))
)
_RANKS = select(tables.ledger.c.rank)
_DROPS = select(_event.step, _event.data).where(
    _event.run == bindparam("of_run"),
    _event.kind == "dropped",
    _event.rank == 0,
    _event.step.between(bindparam("first"), bindparam("last")),
)
