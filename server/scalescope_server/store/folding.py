"""What the levels of samples and of tallies share: which bucket a record falls into, and where its rows go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scalescope.packing import compress, decompress
from sqlalchemy import Connection, Row, Select, Table, and_, bindparam, insert, literal, or_, select

from scalescope_server.store.levels import bucket_size
from scalescope_server.store.upsert import replace_rows

# Buckets read and written at once: a statement costs as much as folding one of them, and each is as large as a
# record of all the run's parameters.
AT_ONCE = 8

Place = slice | NDArray[np.int64]


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


def add_records(
    connection: Connection,
    rolled: Table,
    new: Sequence[Item],
    levels: int,
    folded: Callable[[Row[Any] | None, Sequence[Item]], dict[str, Any]],
) -> None:
    """Add records, each told once, to the levels 1 to ``levels`` in ``rolled``.

    ``folded``: the columns of a bucket, from its stored row and the records that are new in it.
    """
    of_key = _by_bucket(new, levels)
    keys = list(of_key)
    for first in range(0, len(keys), AT_ONCE):
        some = keys[first : first + AT_ONCE]
        stored = _stored(connection, rolled, some)
        replace_rows(connection, rolled, [key._asdict() | folded(stored.get(key), of_key[key]) for key in some])


def _by_bucket(new: Sequence[Item], levels: int) -> dict[Key, list[Item]]:
    """The records of each bucket of each level."""
    of_key: defaultdict[Key, list[Item]] = defaultdict(list)
    for level in range(1, levels + 1):
        for item in new:
            of_key[item.key._replace(level=level, bucket=item.key.bucket // bucket_size(level))].append(item)
    return of_key


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
