"""Tallies and probes on their way into the tables, and the series derived from tallies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scalescope.wire import Probe, SampleReason, Subject, Tally
from sqlalchemy import Connection, insert

from scalescope_server.store import tables
from scalescope_server.store.bulk import insert_rows
from scalescope_server.store.columns import Columns, packed_columns
from scalescope_server.store.decoding import Tallied
from scalescope_server.store.derived import update_series, update_sums
from scalescope_server.store.derived_points import enter_derived
from scalescope_server.store.folding import Key, above, packed_positions, place_of
from scalescope_server.store.gathered import gather
from scalescope_server.store.layouts import Places, places_of
from scalescope_server.store.measured import is_periodic
from scalescope_server.store.origin import Origin
from scalescope_server.store.parts import Share
from scalescope_server.store.records import TallyKind
from scalescope_server.store.tables import ALL_RANKS
from scalescope_server.store.transaction import Transaction
from scalescope_server.store.values import scale_key


def enter_tallies(transaction: Transaction, origin: Origin, records: Sequence[Tallied]) -> None:
    """Store the tallies and probes of one caller.

    Raises:
        BadRecord: if one has an index outside the caller's layout.
    """
    if not records:
        return
    places = places_of(transaction.connection, origin)
    rows = []
    for tallied in records:
        positions = places.positions_of(_subject(tallied.record), tallied.indexes, tallied.record)
        key, reason = _key(origin, tallied.record)
        row = _row(origin, key, reason, tallied, positions)
        if isinstance(tallied.record, Probe):
            _enter_probe(transaction.connection, row, tallied.data)
        elif tallied.columns:
            rows.append(row)
        if tallied.columns:
            _pile(transaction, key, tallied.columns, positions)
        if tallied.columns and origin.merges:
            _pile_of_all(
                transaction, key, tallied, positions, places.share_of(_subject(tallied.record), tallied.indexes)
            )
    if rows:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        insert_rows(transaction.connection, tables.tally, columns)
    _enter_series(transaction, origin, places, records)


def _pile(
    transaction: Transaction,
    key: Key,
    columns: Columns,
    positions: NDArray[np.int64],
    tallies: int | NDArray[np.int64] = 1,
) -> None:
    """Add a tally to what is new in its bucket. ``tallies``: as how many of them each row counts."""
    heap = transaction.news(key.run).tallies
    level = heap.level(transaction.connection, key.run, key.kind, key.rank)
    heap.at(above(key, level), int(positions.max(initial=-1)) + 1).add(place_of(positions), columns, tallies)


def _pile_of_all(
    transaction: Transaction, key: Key, tallied: Tallied, positions: NDArray[np.int64], share: Share
) -> None:
    """Add what the merge of all ranks takes of a tally, of which ``share`` is this rank's."""
    rows = np.flatnonzero(share.reports)
    if rows.size:
        columns = {name: values[rows] for name, values in tallied.columns.items()}
        _pile(transaction, key._replace(rank=ALL_RANKS), columns, positions[rows], share.leads[rows].astype(np.int64))


def _enter_series(transaction: Transaction, origin: Origin, places: Places, records: Sequence[Tallied]) -> None:
    """Store the series of updates: that of this rank, and its part in that of all ranks."""
    sequence = records[0].record.sequence
    told = [(_step(origin, t), sums) for t in records if (sums := update_sums(t.columns))]
    if told:
        steps, values = np.array([step for step, _ in told]), update_series([sums for _, sums in told])
        enter_derived(transaction, origin, steps, values, of_all="update_ratio", sequence=sequence)
    if origin.merges:
        reported = [(t, np.flatnonzero(places.share_of(_subject(t.record), t.indexes).reports)) for t in records]
        picked = [(t, {name: values[rows] for name, values in t.columns.items()}) for t, rows in reported if rows.size]
        parts = [(_step(origin, t), sums) for t, columns in picked if (sums := update_sums(columns))]
        gather(transaction, origin, "update", parts, alone=places.share.alone, sequence=sequence)


def _step(origin: Origin, tallied: Tallied) -> int:
    return origin.first_step + tallied.record.step


def _row(
    origin: Origin, key: Key, reason: SampleReason, tallied: Tallied, positions: NDArray[np.int64]
) -> dict[str, Any]:
    return {
        "run": key.run,
        "kind": key.kind,
        "rank": key.rank,
        "step": key.bucket,
        "segment": origin.segment,
        "at": tallied.record.at,
        "reason": reason,
        "scale": key.scale,
        "scale_flag": key.scale_flag,
        "positions": packed_positions(positions),
        **packed_columns(tallied.columns, len(positions)),
    }


def _enter_probe(connection: Connection, row: dict[str, Any], data: dict[str, Any]) -> None:
    stored = connection.execute(_NEW_TALLY, row).scalar_one()
    connection.execute(_NEW_PROBE, {"tally": stored, "data": data})


def _key(origin: Origin, record: Tally | Probe) -> tuple[Key, SampleReason]:
    """The key at level 0, and why the record was made. Those of probes are unscaled, and made on request."""
    kind: TallyKind = "probe" if isinstance(record, Probe) else record.subject
    reason: SampleReason = "request" if isinstance(record, Probe) else record.reason
    scale = None if isinstance(record, Probe) else record.scale
    step = origin.first_step + record.step
    return Key(origin.run, kind, origin.rank, 0, step, is_periodic(reason), *scale_key(scale)), reason


def _subject(record: Tally | Probe) -> Subject:
    return "parameter" if isinstance(record, Probe) else record.subject


_NEW_TALLY = insert(tables.tally).returning(tables.tally.c.key)
_NEW_PROBE = insert(tables.probe)
