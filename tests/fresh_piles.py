"""The levels of samples and of tallies against a fold of the exact records, one after the other.

For ranks that tell no parts of parameters: what rank 0 measured of these is what all ranks did, and each rank has
outputs of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from scalescope.packing import unpack
from scalescope_server.store import tables
from scalescope_server.store.columns import FOLDS, columns_of
from scalescope_server.store.folding import Key, counts_of, positions_of
from scalescope_server.store.levels import FACTOR, lowest_for
from scalescope_server.store.sample_rollup import packed_of, pile_of
from scalescope_server.store.tables import ALL_RANKS
from sqlalchemy import Connection, Table, select

_OF_MODULES = frozenset({"module", "forward", "grad_output"})
_SUMS = ("counts", "zero", "inf", "nan", "sum_squares")

# Position -> what is known of it.
Rows = dict[int, dict[str, Any]]


class Record(NamedTuple):
    """A stored sample or tally: where it counts, and what it tells of each position."""

    key: Key
    rows: Rows


def stale_piles(connection: Connection, run: int, levels: int) -> Iterator[str]:
    """A sentence for each bucket that is not what the exact records amount to."""
    yield from _stale(connection, run, levels, _samples(connection, run), tables.sample_rollup)
    yield from _stale(connection, run, levels, _tallies(connection, run), tables.tally_rollup)


def _stale(connection: Connection, run: int, levels: int, records: Iterator[Record], rolled: Table) -> Iterator[str]:
    of_run = connection.execute(select(tables.run).where(tables.run.c.key == run)).one()
    read = _pile_rows if rolled is tables.sample_rollup else _tally_rows
    found = {_key(row): read(row) for row in connection.execute(select(rolled).where(rolled.c.run == run))}
    expected: defaultdict[Key, Rows] = defaultdict(dict)
    for record in records:
        of_all = of_run.world_size > 1 and _is_of_all(record.key)
        for rank in (record.key.rank, ALL_RANKS) if of_all else (record.key.rank,):
            # Where one record stands alone in a bucket there is no level.
            lowest = lowest_for(of_run.every)
            for level in range(lowest, max(levels, lowest) + 1):
                bucket = record.key.bucket // FACTOR**level
                _add(expected[record.key._replace(rank=rank, level=level, bucket=bucket)], record.rows)
    for key in sorted({*found, *expected}):
        if not _same(found.get(key, {}), expected.get(key, {})):
            yield f"{rolled.name} {key}: expected {expected.get(key)}, got {found.get(key)}"


def _is_of_all(key: Key) -> bool:
    return key.rank == 0 or key.kind in _OF_MODULES


def _key(row: Any) -> Key:
    return Key(*(getattr(row, name) for name in Key._fields))


def _samples(connection: Connection, run: int) -> Iterator[Record]:
    for row in connection.execute(select(tables.sample).where(tables.sample.c.run == run)):
        table = unpack(packed_of(row))
        rows = {
            int(position): {"amax": table.amax[i], "of": 1} | {name: getattr(table, name)[i] for name in _SUMS}
            for i, position in enumerate(positions_of(row.positions, row.rows))
        }
        yield Record(_exact_key(row), rows)


def _tallies(connection: Connection, run: int) -> Iterator[Record]:
    for row in connection.execute(select(tables.tally).where(tables.tally.c.run == run)):
        columns = columns_of(row)
        rows = {
            int(position): {"of": 1} | {name: values[i] for name, values in columns.items()}
            for i, position in enumerate(positions_of(row.positions, row.rows))
        }
        yield Record(_exact_key(row), rows)


def _exact_key(row: Any) -> Key:
    return Key(row.run, row.kind, row.rank, 0, row.step, row.reason == "periodic", row.scale, row.scale_flag)


def _add(rows: Rows, more: Rows) -> None:
    for position, told in more.items():
        rows[position] = _both(rows[position], told) if position in rows else dict(told)


def _both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _folded(name, one.get(name, np.nan), other.get(name, np.nan)) for name in {**one, **other}}


def _folded(name: str, one: Any, other: Any) -> Any:
    if name == "amax" or FOLDS.get(name) == "max":
        return np.fmax(one, other)
    known = [value for value in (one, other) if not np.all(np.isnan(value))]
    return sum(known[1:], known[0]) if known else np.nan


def _pile_rows(row: Any) -> Rows:
    pile = pile_of(row)
    return {
        position: {"amax": pile.kept.whole().amax[position], "of": pile.samples[position]}
        | {name: getattr(pile.kept.whole(), name)[position] for name in _SUMS}
        for position in range(row.rows)
        if pile.samples[position]
    }


def _tally_rows(row: Any) -> Rows:
    columns, of = columns_of(row), counts_of(row.tallies, row.rows)
    return {
        position: {"of": of[position]} | {name: values[position] for name, values in columns.items()}
        for position in range(row.rows)
        if of[position]
    }


def _same(found: Rows, expected: Rows) -> bool:
    return found.keys() == expected.keys() and all(_same_row(found[p], expected[p]) for p in found)


def _same_row(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return all(
        np.allclose(found.get(name, np.nan), expected.get(name, np.nan), rtol=1e-12, atol=0.0, equal_nan=True)
        for name in {**found, **expected}
    )
