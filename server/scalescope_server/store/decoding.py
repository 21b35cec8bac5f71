"""Records as arrays that are known to make sense, before the database sees any of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Never

import numpy as np
from numpy.typing import NDArray
from scalescope.packing import PackedError, part_sizes
from scalescope.rows import column_arrays, indexes, tallied, times
from scalescope.wire import Bye, Event, Layout, Probe, Record, Sample, Setup, Steps, Tally, WireError

from scalescope_server.store.columns import FOLDS, Columns
from scalescope_server.store.derived import MERGED_SERIES
from scalescope_server.store.errors import BadRecord
from scalescope_server.store.json_text import dumps, json_object
from scalescope_server.store.levels import MAX_STEP
from scalescope_server.store.stacks import MAX_NUMEL
from scalescope_server.store.tables import STEP_COLUMNS
from scalescope_server.store.texts import storable

# Names that mean something else than a number the user logged; hers are kept beside them.
_TAKEN = frozenset({"applied", "attempted", *MERGED_SERIES})
_OWN_PREFIX = "user/"

# What is no count: sums of squares or products may leave float64, a largest finite value cannot.
_MOST = {name: np.inf for name in FOLDS if name.endswith("_squares") or name == "products"}
_MOST |= {name: float(np.finfo(np.float64).max) for name, fold in FOLDS.items() if fold == "max"}

Placed = Sample | Tally | Probe | Event | Setup
Rows = tuple[NDArray[np.int64], NDArray[np.float64]]


class Stretch(NamedTuple):
    """The updates ``first`` to ``last``, both in it, whose windows are alike: ``facts`` is strict JSON text."""

    first: int
    last: int
    facts: str


@dataclass(frozen=True, slots=True, eq=False)
class Updates:
    """A :class:`Steps` record: ``columns`` of the step table and the user's ``own``, as (rows, values).

    ``windows``: in order, those that have facts.
    """

    sequence: int
    first: int
    count: int
    at: NDArray[np.float64]
    columns: dict[str, Rows]
    own: dict[str, Rows]
    windows: list[Stretch]


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """A :class:`Sample` record, and the layout's index of each row. Its table is unpacked with others (``stacks``)."""

    record: Sample
    indexes: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Tallied:
    """A :class:`Tally` or :class:`Probe` record: the columns that we know, the layout's index of each row.

    ``data``: that of a probe, empty for a tally.
    """

    record: Tally | Probe
    indexes: NDArray[np.int64]
    columns: Columns
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Happening:
    """An :class:`Event` record with its data read."""

    record: Event
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Held:
    """A :class:`Setup` record with its data read."""

    record: Setup
    data: dict[str, Any]


Decoded = Layout | Updates | Measured | Tallied | Happening | Held | Bye


def decode(record: Record) -> Decoded:
    """What a record holds.

    Raises:
        BadRecord: if it contradicts itself or leaves the ranges that the store keeps.
    """
    if isinstance(record, Steps):
        return _updates(record)
    if isinstance(record, Sample):
        return _measured(record)
    if isinstance(record, Tally | Probe):
        return _tallied(record)
    if isinstance(record, Event):
        return _happening(record)
    if isinstance(record, Setup):
        return _held(record)
    if isinstance(record, Bye):
        _check_time("bye", record.sequence, record.at)
    return record


def _updates(record: Steps) -> Updates:
    if record.first + record.count > MAX_STEP:
        _refuse(record, f"expected steps below {MAX_STEP}, got {record.first + record.count}")
    try:
        at = times(record)
        read = {name: column_arrays(packed, record.count) for name, packed in record.columns.items()}
    except WireError as error:
        raise BadRecord("steps", record.sequence, str(error)) from error
    columns = {name: rows for name, rows in read.items() if name in STEP_COLUMNS}
    own = {own_name(name): rows for name, rows in read.items() if name not in STEP_COLUMNS}
    _check_columns(record, columns)
    return Updates(record.sequence, record.first, record.count, at, columns, own, _windows(record))


def _windows(record: Steps) -> list[Stretch]:
    if sum(window.count for window in record.windows) > record.count:
        _refuse(record, f"expected windows of at most {record.count} updates, got more")
    facts = {text: dumps(_object(record, "windows", text)) for text in {window.data for window in record.windows}}
    found, first = [], record.first
    for window in record.windows:
        found.append(Stretch(first, first + window.count - 1, facts[window.data]))
        first += window.count
    return [stretch for stretch in found if stretch.facts != "{}"]


def own_name(name: str) -> str:
    """The series under which a number that the user logged as ``name`` is kept."""
    return storable(f"{_OWN_PREFIX}{name}" if name in _TAKEN else name)


def _check_columns(record: Steps, columns: dict[str, Rows]) -> None:
    if "skipped" in columns and not np.isin(columns["skipped"][1], (0.0, 1.0)).all():
        _refuse(record, "expected 0 or 1 in the column skipped, got something else")
    if "growth_tracker" in columns:
        values = columns["growth_tracker"][1]
        finite = values[np.isfinite(values)]
        if (finite != np.floor(finite)).any() or (np.abs(finite) > 2**53).any():
            _refuse(record, "expected whole numbers in the column growth_tracker, got something else")


def _measured(record: Sample) -> Measured:
    _check_place(record)
    try:
        # The header first: it may give any number of rows.
        part_sizes(record.table)
        return Measured(record, indexes(record))
    except (WireError, PackedError) as error:
        raise BadRecord("sample", record.sequence, str(error)) from error


def _tallied(record: Tally | Probe) -> Tallied:
    _check_place(record)
    try:
        rows, columns = tallied(record)
    except WireError as error:
        raise BadRecord(_kind(record), record.sequence, str(error)) from error
    # A newer hook may tally more than we know how to fold.
    known = {name: values for name, values in columns.items() if name in FOLDS}
    _check_tallies(record, known)
    return Tallied(record, rows, known, _object(record, "data", record.data) if isinstance(record, Probe) else {})


def _check_tallies(record: Tally | Probe, columns: Columns) -> None:
    """NaN is not known, and products have any sign; the rest are counts, squares or magnitudes."""
    if not columns:
        return
    values = np.array(list(columns.values()))
    least, most = _limits(tuple(columns))
    too_small, too_large = (values < least, least, "least", "smaller"), (values > most, most, "most", "larger")
    for wrong, limit, word, got in (too_small, too_large):
        if wrong.any():
            place = int(np.flatnonzero(wrong.any(axis=1))[0])
            bound = f"expected values of at {word} {limit[place, 0]:g} in the column {list(columns)[place]}"
            _refuse(record, f"{bound}, got a {got} one")


@lru_cache(maxsize=64)
def _limits(names: tuple[str, ...]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The least and the most that each column may hold, [columns, 1]."""
    least = [[-np.inf if name == "products" else 0.0] for name in names]
    return np.array(least), np.array([[_MOST.get(name, MAX_NUMEL)] for name in names])


def _happening(record: Event) -> Happening:
    _check_place(record)
    return Happening(record, _object(record, "data", record.data))


def _held(record: Setup) -> Held:
    _check_place(record)
    return Held(record, _object(record, "data", record.data))


def _object(record: Steps | Probe | Event | Setup, name: str, text: str) -> dict[str, Any]:
    try:
        return json_object(text)
    except ValueError as error:
        raise BadRecord(_kind(record), record.sequence, f"{name}: {error}") from error


def _check_place(record: Placed) -> None:
    if record.step >= MAX_STEP:
        _refuse(record, f"expected a step below {MAX_STEP}, got {record.step}")
    _check_time(_kind(record), record.sequence, record.at)


def _check_time(record: str, sequence: int, at: float) -> None:
    if not math.isfinite(at):
        raise BadRecord(record, sequence, f"expected seconds since the epoch, got {at}")


def _refuse(record: Steps | Placed, message: str) -> Never:
    raise BadRecord(_kind(record), record.sequence, message)


def _kind(record: Steps | Placed) -> str:
    return type(record).__name__.lower()
