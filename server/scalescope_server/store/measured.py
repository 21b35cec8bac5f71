"""Samples on their way into the tables: the table as it came, and the series derived from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import insert

from scalescope_server.store import tables
from scalescope_server.store.decoding import Measured
from scalescope_server.store.derived import derive
from scalescope_server.store.derived_points import enter_derived
from scalescope_server.store.folding import Key, packed_positions
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
        positions = places.positions_of(subject_of(measured.record.kind), measured.indexes, measured.record)
        rows.append(_row(origin, measured, positions))
        key = _key(origin, measured)
        transaction.news(origin.run).samples.append(NewSample(key, measured.table, positions))
    transaction.connection.execute(_NEW_SAMPLES, rows)
    told = [_derived(origin, m, places) for m in records if m.record.kind == "grad"]
    enter_derived(transaction, origin, told, of_all="amax", sequence=records[0].record.sequence)


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


def _derived(origin: Origin, measured: Measured, places: Places) -> tuple[int, dict[str, float]]:
    values = derive(measured.table, places.formats[measured.indexes], measured.record.scale)
    return origin.first_step + measured.record.step, values


_NEW_SAMPLES = insert(tables.sample)
