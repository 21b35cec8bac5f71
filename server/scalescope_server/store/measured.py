"""Samples on their way into the tables: the table as it came, and the series derived from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import bindparam, insert, select

from scalescope_server.store import tables
from scalescope_server.store.decoding import Measured
from scalescope_server.store.derived import derive
from scalescope_server.store.errors import BadRecord
from scalescope_server.store.layouts import Places, places_of
from scalescope_server.store.origin import Origin
from scalescope_server.store.rollup import Points
from scalescope_server.store.sample_rollup import Key, NewSample, packed_columns
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
        positions = _positions(measured, places)
        rows.append(_row(origin, measured, positions))
        key = _key(origin, measured)
        transaction.news(origin.run).samples.append(NewSample(key, measured.table, positions))
    transaction.connection.execute(_NEW_SAMPLES, rows)
    _enter_derived(transaction, origin, [m for m in records if m.record.kind == "grad"], places)


def is_periodic(reason: str) -> bool:
    """Whether averages over time may use a sample; those taken after trouble, or on request, would bias them."""
    return reason == "periodic"


def _positions(measured: Measured, places: Places) -> NDArray[np.int64]:
    if measured.indexes.max(initial=-1) >= len(places.positions):
        known = f"one of the {len(places.positions)} parameters of the layout"
        message = f"expected the index of {known}, got {measured.indexes.max()}"
        raise BadRecord("sample", measured.record.sequence, message)
    return places.positions[measured.indexes]


def _key(origin: Origin, measured: Measured) -> Key:
    record = measured.record
    scale, flag = scale_key(record.scale)
    step = origin.first_step + record.step
    return Key(origin.run, record.kind, origin.rank, 0, step, is_periodic(record.reason), scale, flag)


def _row(origin: Origin, measured: Measured, positions: NDArray[np.int64]) -> dict[str, Any]:
    record = measured.record
    scale, flag = scale_key(record.scale)
    in_order = np.array_equal(positions, np.arange(len(positions)))
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
        "positions": None if in_order else positions.astype("<i4").tobytes(),
        **packed_columns(record.table),
    }


def _enter_derived(transaction: Transaction, origin: Origin, records: Sequence[Measured], places: Places) -> None:
    """Store the derived series; the first sample of a step is the one that tells them."""
    if not records:
        return
    told: dict[str, dict[int, float]] = {}
    known = _known_steps(transaction, origin, records)
    for measured in records:
        step = origin.first_step + measured.record.step
        if step in known:
            continue
        known.add(step)
        values = derive(measured.table, places.formats[measured.indexes], measured.record.scale)
        for name, value in values.items():
            told.setdefault(name, {})[step] = value
    keys = transaction.series(origin.run, list(told), sequence=records[0].record.sequence)
    points = [_points(keys[name], origin.rank, values) for name, values in told.items()]
    transaction.add_scalars(origin.run, origin.segment, points)


def _points(series: int, rank: int, values: dict[int, float]) -> Points:
    steps = np.array(sorted(values), np.int64)
    return Points(series, rank, steps, np.array([values[step] for step in steps.tolist()], np.float64))


def _known_steps(transaction: Transaction, origin: Origin, records: Sequence[Measured]) -> set[int]:
    """Those of the samples' steps for which derived values are stored."""
    lowest = min(origin.first_step + m.record.step for m in records)
    if lowest > origin.highest_sample:
        return set()
    series = transaction.series(origin.run, ["amax"], sequence=records[0].record.sequence)["amax"]
    of_caller = {"of_series": series, "of_rank": origin.rank, "of_segment": origin.segment, "start": lowest}
    return set(transaction.connection.execute(_DERIVED_STEPS, of_caller).scalars())


_NEW_SAMPLES = insert(tables.sample)
_DERIVED_STEPS = select(tables.scalar.c.step).where(
    tables.scalar.c.series == bindparam("of_series"),
    tables.scalar.c.rank == bindparam("of_rank"),
    tables.scalar.c.segment == bindparam("of_segment"),
    tables.scalar.c.step >= bindparam("start"),
)
