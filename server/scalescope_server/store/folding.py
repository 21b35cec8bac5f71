"""What the levels of samples and of tallies share: which bucket a record falls into, and where its rows go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scalescope.packing import compress, decompress
from sqlalchemy import Connection, Row, Select, Table, bindparam, func, insert, literal, select

from scalescope_server.store import tables
from scalescope_server.store.bulk import insert_rows, merge_rows
from scalescope_server.store.levels import bucket_size, lowest_for

# Buckets read and written at once, packed: a statement costs as much as folding one of them.
AT_ONCE = 32

Place = slice | NDArray[np.int64]

Each = TypeVar("Each")
Group = TypeVar("Group", bound=Hashable)

_BUCKETS = tuple(f"bucket_{i}" for i in range(AT_ONCE))


class Key(NamedTuple):
    """The primary key of a roll-up. ``scale`` and ``scale_flag`` as ``values.scale_key`` gives them."""

    run: int
    kind: str
    rank: int
    level: int
    bucket: int
    periodic: bool
    scale: float
    scale_flag: int


class Growing(Protocol):
    """What is added up in one bucket: a row for each of the run's first parameters, or modules."""

    def grow(self, rows: int) -> None:
        """Have at least so many rows, where they are new of nothing."""


Pile = TypeVar("Pile", bound=Growing)


@dataclass(frozen=True, slots=True)
class Sort(Generic[Pile]):
    """How one sort of records is folded into the levels in ``rolled``.

    ``empty``: a pile of so many rows; ``joined``: that of several piles, none of which changes. ``stored``: the pile of
    a row; ``columns``: what of a row is its pile.
    """

    rolled: Table
    empty: Callable[[int], Pile]
    joined: Callable[[Sequence[Pile]], Pile]
    stored: Callable[[Row[Any]], Pile]
    columns: Callable[[Pile], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Folded:
    """A bucket with what is new in it; whether it is ``stored`` already; and what of its row is its pile, packed."""

    key: Key
    stored: bool
    columns: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Heap(Generic[Pile]):
    """What is new of one sort of records of a run: a pile for each bucket of the lowest level that is kept of them."""

    sort: Sort[Pile]
    _piles: dict[Key, Pile] = field(default_factory=dict)
    _lowest: dict[tuple[str, int], int] = field(default_factory=dict)

    def level(self, connection: Connection, run: int, kind: str, rank: int) -> int:
        """The lowest level that is kept of these records."""
        whose = (kind, rank)
        if whose not in self._lowest:
            self._lowest[whose] = _lowest_kept(connection, self.sort.rolled, run, kind, rank)
        return self._lowest[whose]

    def at(self, bucket: Key, rows: int) -> Pile:
        """What is new in ``bucket``, to be added to; it has at least so many rows."""
        pile = self._piles.get(bucket)
        if pile is None:
            pile = self._piles[bucket] = self.sort.empty(rows)
        else:
            pile.grow(rows)
        return pile

    def fold(self, connection: Connection, levels: int) -> None:
        """Add all of it to what is stored, up to the level ``levels``: a pile to its own, and to those above."""
        folded: list[Folded] = []
        for (_, _, _, lowest), of_one in _grouped(self._piles, lambda key: key[:4]).items():
            piles = {key: self._piles[key] for key in of_one}
            folded += self._with_stored(connection, piles)
            for _ in range(lowest, levels):
                below = _grouped(piles, lambda key: above(key, 1))
                piles = {key: self._together([piles[one] for one in some]) for key, some in below.items()}
                folded += self._with_stored(connection, piles)
        self._write(connection, folded)

    def _write(self, connection: Connection, folded: Sequence[Folded]) -> None:
        for write, stored in ((insert_rows, False), (merge_rows, True)):
            some = [each for each in folded if each.stored is stored]
            for first in range(0, len(some), AT_ONCE):
                rows = [each.key._asdict() | each.columns for each in some[first : first + AT_ONCE]]
                write(connection, self.sort.rolled, {name: [row[name] for row in rows] for name in rows[0]})

    def _with_stored(self, connection: Connection, piles: Mapping[Key, Pile]) -> Iterator[Folded]:
        """Piles of one level, together with those that are stored."""
        keys = sorted(piles)
        for first in range(0, len(keys), AT_ONCE):
            some = keys[first : first + AT_ONCE]
            stored = _stored(connection, self.sort.rolled, some)
            for key in some:
                yield Folded(key, key in stored, self._packed(stored.get(key), piles[key]))

    def _packed(self, stored: Row[Any] | None, pile: Pile) -> dict[str, Any]:
        return self.sort.columns(pile if stored is None else self._together([self.sort.stored(stored), pile]))

    def _together(self, piles: Sequence[Pile]) -> Pile:
        return piles[0] if len(piles) == 1 else self.sort.joined(piles)


def _lowest_kept(connection: Connection, rolled: Table, run: int, kind: str, rank: int) -> int:
    """The lowest level of the records that are stored; before the first of them, by how seldom the run takes one."""
    stored = lowest_level(connection, rolled, run, kind, rank)
    return lowest_for(connection.execute(_EVERY, {"of_run": run}).scalar_one()) if stored is None else stored


def lowest_level(connection: Connection, rolled: Table, run: int, kind: str, rank: int) -> int | None:
    """The lowest level that is kept of these records; None before the first of them."""
    found: int | None = connection.execute(_lowest(rolled), {"run": run, "kind": kind, "rank": rank}).scalar_one()
    return found


@cache
def _lowest(rolled: Table) -> Select[Any]:
    of_records = (rolled.c[name] == bindparam(name) for name in ("run", "kind", "rank"))
    return select(func.min(rolled.c.level)).where(*of_records)


def above(key: Key, levels: int) -> Key:
    """The bucket so many levels above that of ``key``."""
    return key._replace(level=key.level + levels, bucket=key.bucket // bucket_size(levels))


def _grouped(items: Iterable[Each], key_of: Callable[[Each], Group]) -> dict[Group, list[Each]]:
    found: defaultdict[Group, list[Each]] = defaultdict(list)
    for item in items:
        found[key_of(item)].append(item)
    return found


def _stored(connection: Connection, rolled: Table, keys: Sequence[Key]) -> Mapping[Key, Row[Any]]:
    """The rows that there are of at most ``AT_ONCE`` rising ``keys`` of one level, kind and rank, in their order."""
    buckets = [key.bucket for key in keys]
    # One statement for any number of them.
    wanted = dict(zip(_BUCKETS, buckets + buckets[-1:] * (AT_ONCE - len(keys)), strict=True))
    of_level = {name: getattr(keys[0], name) for name in ("run", "kind", "rank", "level")}
    rows = connection.execute(_in_buckets(rolled), of_level | wanted)
    found = {Key(*(getattr(row, name) for name in Key._fields)): row for row in rows}
    return {key: found[key] for key in keys if key in found}


@cache
def _in_buckets(rolled: Table) -> Select[Any]:
    of_level = (rolled.c[name] == bindparam(name) for name in ("run", "kind", "rank", "level"))
    return select(rolled).where(*of_level, rolled.c.bucket.in_([bindparam(name) for name in _BUCKETS]))


def place_of(positions: NDArray[np.int64]) -> Place:
    """Where rows go that belong to the parameters or modules at ``positions``, all different."""
    in_order = slice(0, len(positions))
    return in_order if np.array_equal(positions, np.arange(len(positions))) else positions


def packed_positions(positions: NDArray[np.int64]) -> bytes | None:
    """``positions`` as they are stored: null where they are the run's first in order."""
    return None if isinstance(place_of(positions), slice) else positions.astype("<i4").tobytes()


def positions_of(stored: bytes | None, rows: int) -> NDArray[np.int64]:
    """What :func:`packed_positions` was given, int64 [rows]."""
    return np.arange(rows) if stored is None else np.frombuffer(stored, "<i4").astype(np.int64)


def rows_at(stored: bytes | None, rows: int, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row of a stored record of so many rows that holds each of the ``chosen`` positions, -1 where none does."""
    if stored is None:
        return np.where(chosen < rows, chosen, -1)
    return rows_of(positions_of(stored, rows), chosen)


def rows_of(positions: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row that holds each of the ``chosen`` positions, -1 where none does. ``positions``: of each row."""
    rows = np.full(int(positions.max(initial=-1)) + 1, -1)
    rows[place_of(positions)] = np.arange(len(positions))
    return looked_up(rows, chosen)


def looked_up(rows: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """``rows`` at each of ``chosen``, -1 beyond their end."""
    found = np.full(len(chosen), -1)
    known = chosen < len(rows)
    found[known] = rows[chosen[known]]
    return found


def packed_counts(counts: NDArray[np.int64]) -> bytes:
    return compress(counts.astype("<i8").tobytes())


def counts_of(packed: bytes, rows: int) -> NDArray[np.int64]:
    """int64 [rows], which may be written to."""
    return np.frombuffer(decompress(packed, expected=8 * rows), "<i8").astype(np.int64)


def promote(connection: Connection, stored: Table, run: int, level: int) -> None:
    """Begin level ``level + 1`` of a run whose every record lies in the first bucket of ``level``."""
    columns = [c for c in stored.columns if c.name != "level"]
    first = select(*columns, literal(level + 1)).where(
        stored.c.run == run, stored.c.level == level, stored.c.bucket == 0
    )
    connection.execute(insert(stored).from_select([*(c.name for c in columns), "level"], first))


_EVERY = select(tables.run.c.every).where(tables.run.c.key == bindparam("of_run"))
