"""Samples on their way into the tables: the table as it came, and the series derived from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalescope_server.store import tables
from scalescope_server.store.bulk import insert_rows
from scalescope_server.store.decoding import Measured
from scalescope_server.store.derived import GradientSums, gradient_sums
from scalescope_server.store.derived_points import enter_derived
from scalescope_server.store.folding import Key, packed_positions
from scalescope_server.store.gathered import gather
from scalescope_server.store.layouts import Places, places_of, subject_of
from scalescope_server.store.origin import Origin
from scalescope_server.store.sample_rollup import NewSample, packed_columns
from scalescope_server.store.transaction import Transaction
from scalescope_server.store.values import scale_key


def enter_samples(transaction: Transaction, origin: Origin, records: Sequence[Measured]) -> None:
    """Store the samples of one caller.

    Raises:
        BadRecord: if one has an index outside the caller's layout.
    """
    if not records:
        return
    places = places_of(transaction.connection, origin)
    rows = []
    for measured in records:
        subject = subject_of(measured.record.kind)
        positions = places.positions_of(subject, measured.indexes, measured.record)
        rows.append(_row(origin, measured, positions))
        new = NewSample(_key(origin, measured), measured.table, positions)
        waiting = transaction.news(origin.run).samples
        waiting.append(new)
        if origin.merges:
            waiting.extend(new.merged(places.share_of(subject, measured.indexes)))
    insert_rows(transaction.connection, tables.sample, {name: [row[name] for row in rows] for name in rows[0]})
    _enter_series(transaction, origin, places, [m for m in records if m.record.kind == "grad"])


def _enter_series(transaction: Transaction, origin: Origin, places: Places, gradients: Sequence[Measured]) -> None:
    """Store the series of gradients: those of this rank, and its part in those of all ranks."""
    if not gradients:
        return
    sequence = gradients[0].record.sequence
    told = [(_step(origin, m), _sums(m, places, np.arange(m.table.rows)).values()) for m in gradients]
    enter_derived(transaction, origin, told, of_all="amax", sequence=sequence)
    if origin.merges:
        reported = [(m, np.flatnonzero(places.share.of(m.indexes).reports)) for m in gradients]
        parts = [(_step(origin, m), _sums(m, places, rows)) for m, rows in reported if rows.size]
        gather(transaction, origin, "grad", parts, alone=places.share.alone, sequence=sequence)


def _sums(measured: Measured, places: Places, rows: NDArray[np.int64]) -> GradientSums:
    """Of some of the rows of a sample of gradients."""
    table = measured.table if len(rows) == measured.table.rows else measured.table.take(rows)
    return gradient_sums(table, places.formats[measured.indexes[rows]], measured.record.scale)


def _step(origin: Origin, measured: Measured) -> int:
    return origin.first_step + measured.record.step


def is_periodic(reason: str) -> bool:
    """Whether averages over time may use a sample; those taken after trouble, or on request, would bias them."""
    return reason == "periodic"


def _key(origin: Origin, measured: Measured) -> Key:
    record = measured.record
    scale, flag = scale_key(record.scale)
    step = origin.first_step + record.step
    return Key(origin.run, record.kind, origin.rank, 0, step, is_periodic(record.reason), scale, flag)


def _row(origin: Origin, measured: Measured, positions: NDArray[np.int64]) -> dict[str, Any]:
    record = measured.record
    scale, flag = scale_key(record.scale)
    return {
        "run": origin.run,
        "kind": record.kind,
        "rank": origin.rank,
        "step": origin.first_step + record.step,
        "segment": origin.segment,
        "at": record.at,
        "reason": record.reason,
        "scale": scale,
        "scale_flag": flag,
        "micro_batches": record.micro_batches,
        "positions": packed_positions(positions),
        **packed_columns(record.table),
    }
