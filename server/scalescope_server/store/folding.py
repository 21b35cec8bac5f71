"""What the levels of samples and of tallies share: which bucket a record falls into, and where its rows go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scalescope.packing import compress, decompress
from sqlalchemy import Connection, Row, Select, Table, and_, bindparam, func, insert, literal, or_, select

from scalescope_server.store.bulk import merge_rows
from scalescope_server.store.levels import bucket_size, lowest_for

# Buckets read and written at once: a statement costs as much as folding one of them, and each is as large as a
# record of all the run's parameters.
AT_ONCE = 8

Place = slice | NDArray[np.int64]

Each = TypeVar("Each")
Group = TypeVar("Group", bound=Hashable)


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


class Keyed(Protocol):
    """A record just stored: its key at level 0, where the bucket is the step."""

    @property
    def key(self) -> Key: ...


Item = TypeVar("Item", bound=Keyed)
Pile = TypeVar("Pile")


@dataclass(frozen=True, slots=True)
class Sort(Generic[Item, Pile]):
    """How one sort of records is folded into the levels in ``rolled``.

    ``piled``: the pile of records of one bucket; ``joined``: that of several piles, none of which changes. ``stored``:
    the pile of a row; ``columns``: what of a row is its pile.
    """

    rolled: Table
    piled: Callable[[Sequence[Item]], Pile]
    joined: Callable[[Sequence[Pile]], Pile]
    stored: Callable[[Row[Any]], Pile]
    columns: Callable[[Pile], dict[str, Any]]

    def add(self, connection: Connection, new: Sequence[Item], levels: int, every: int) -> None:
        """Add records, each told once, to the levels up to ``levels``, in a run that takes one ``every`` so many steps.

        What is new in a bucket is piled up once, and then added to that of the level above.
        """
        for (run, kind, rank), items in _grouped(new, lambda item: item.key[:3]).items():
            lowest = lowest_level(connection, self.rolled, run, kind, rank) or lowest_for(every)
            in_bucket = _grouped(items, partial(_bucket, level=lowest))
            piles = {key: self.piled(some) for key, some in in_bucket.items()}
            self._store(connection, piles)
            for _ in range(lowest, levels):
                below = _grouped(piles, lambda key: _above(key, 1))
                piles = {key: self._together([piles[one] for one in some]) for key, some in below.items()}
                self._store(connection, piles)

    def _store(self, connection: Connection, piles: Mapping[Key, Pile]) -> None:
        keys = sorted(piles)
        for first in range(0, len(keys), AT_ONCE):
            some = keys[first : first + AT_ONCE]
            stored = _stored(connection, self.rolled, some)
            together = {key: [self.stored(stored[key]), piles[key]] if key in stored else [piles[key]] for key in some}
            rows = [key._asdict() | self.columns(self._together(parts)) for key, parts in together.items()]
            merge_rows(connection, self.rolled, {name: [row[name] for row in rows] for name in rows[0]})

    def _together(self, piles: Sequence[Pile]) -> Pile:
        return piles[0] if len(piles) == 1 else self.joined(piles)


def lowest_level(connection: Connection, rolled: Table, run: int, kind: str, rank: int) -> int | None:
    """The lowest level that is kept of these records; None before the first of them."""
    found: int | None = connection.execute(_lowest(rolled), {"run": run, "kind": kind, "rank": rank}).scalar_one()
    return found


@cache
def _lowest(rolled: Table) -> Select[Any]:
    of_records = (rolled.c[name] == bindparam(name) for name in ("run", "kind", "rank"))
    return select(func.min(rolled.c.level)).where(*of_records)


def _bucket(item: Keyed, *, level: int) -> Key:
    return _above(item.key, level)


def _above(key: Key, levels: int) -> Key:
    """The bucket so many levels above that of ``key``."""
    return key._replace(level=key.level + levels, bucket=key.bucket // bucket_size(levels))


def _grouped(items: Iterable[Each], key_of: Callable[[Each], Group]) -> dict[Group, list[Each]]:
    found: defaultdict[Group, list[Each]] = defaultdict(list)
    for item in items:
        found[key_of(item)].append(item)
    return found


def _stored(connection: Connection, rolled: Table, keys: Sequence[Key]) -> Mapping[Key, Row[Any]]:
    """The rows of ``keys`` that there are."""
    wanted = {_bound(name, i): value for i, key in enumerate(keys) for name, value in key._asdict().items()}
    found = connection.execute(_with_keys(rolled, len(keys)), wanted)
    return {Key(*(getattr(row, name) for name in Key._fields)): row for row in found}


@cache
def _with_keys(rolled: Table, count: int) -> Select[Any]:
    """The rows of ``count`` keys. Each is looked up in the index, as it would not be in a list of tuples."""
    keys = (and_(*(rolled.c[name] == bindparam(_bound(name, i)) for name in Key._fields)) for i in range(count))
    return select(rolled).where(or_(*keys))


def _bound(name: str, index: int) -> str:
    return f"{name}_{index}"


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
