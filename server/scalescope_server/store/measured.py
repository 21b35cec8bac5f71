"""Samples on their way into the tables: the table as it came, its place in the roll-ups, the series derived from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scalescope.wire import Sample, SampleKind, Subject

from scalescope_server.store import tables
from scalescope_server.store.bulk import insert_rows
from scalescope_server.store.columns import Real
from scalescope_server.store.decoding import Measured
from scalescope_server.store.derived import GradientSums, gradient_series, gradient_sums
from scalescope_server.store.derived_points import enter_derived
from scalescope_server.store.folding import Key, packed_positions, place_of
from scalescope_server.store.gathered import gather
from scalescope_server.store.layouts import Places, places_of, subject_of
from scalescope_server.store.levels import bucket_size
from scalescope_server.store.origin import Origin
from scalescope_server.store.sample_rollup import HEADER_AND_BODY
from scalescope_server.store.stacks import Stack, stacked
from scalescope_server.store.tables import ALL_RANKS
from scalescope_server.store.transaction import Transaction
from scalescope_server.store.values import scale_key

# The steps of some samples, int64 [samples], and a row of their sums for each.
Told = list[tuple[NDArray[np.int64], Real]]


@dataclass(frozen=True, slots=True, eq=False)
class Alike:
    """Samples of one kind that have the same rows, or the same of their ``rows``.

    ``indexes``, ``positions``: the layout's index and the run's position of each, int64 [rows].
    """

    kind: SampleKind
    records: Sequence[Sample]
    rows: NDArray[np.int64]
    indexes: NDArray[np.int64]
    positions: NDArray[np.int64]

    @property
    def subject(self) -> Subject:
        return subject_of(self.kind)

    def take(self, rows: NDArray[np.int64]) -> Alike:
        """The same of some of their rows alone."""
        return replace(self, rows=self.rows[rows], indexes=self.indexes[rows], positions=self.positions[rows])

    def of(self, stack: Stack) -> Stack:
        """Their rows of a stack of whole samples."""
        return stack if len(self.rows) == stack.amax.shape[1] else stack.take(self.rows)


def enter_samples(transaction: Transaction, origin: Origin, records: Sequence[Measured]) -> None:
    """Store the samples of one caller.

    Raises:
        BadRecord: if one has an index outside the caller's layout, or a table that cannot be one.
    """
    if not records:
        return
    places = places_of(transaction.connection, origin)
    told: Told = []
    of_all: Told = []
    for some in _alike(places, records):
        insert_rows(transaction.connection, tables.sample, _columns(origin, some))
        for chosen, stack in stacked(some.records):
            piece = replace(some, records=some.records[chosen])
            reported = _reported(places, piece) if origin.merges else None
            _pile(transaction, origin, origin.rank, piece, stack)
            if reported is not None:
                leads = places.share_of(piece.subject, reported.indexes).leads.astype(np.int64)
                _pile(transaction, origin, ALL_RANKS, reported, reported.of(stack), leads)
            if piece.kind == "grad":
                told.append(_sums(origin, places, piece, stack))
                of_all += [] if reported is None else [_sums(origin, places, reported, reported.of(stack))]
    _enter_series(transaction, origin, places, told, of_all, sequence=records[0].record.sequence)


def _alike(places: Places, records: Sequence[Measured]) -> Iterator[Alike]:
    """The samples of each kind in their order, as long as they are of the same rows."""
    for kind in dict.fromkeys(measured.record.kind for measured in records):
        of_kind = (measured for measured in records if measured.record.kind == kind)
        for _, of_rows in groupby(of_kind, key=lambda m: (m.record.parameters, m.record.table.rows)):
            first, *others = of_rows
            positions = places.positions_of(subject_of(kind), first.indexes, first.record)
            rows = np.arange(len(positions))
            yield Alike(kind, [first.record, *(m.record for m in others)], rows, first.indexes, positions)


def _reported(places: Places, alike: Alike) -> Alike | None:
    """What the merge of all ranks takes of them; None for nothing."""
    rows = np.flatnonzero(places.share_of(alike.subject, alike.indexes).reports)
    return alike.take(rows) if rows.size else None


def _pile(
    transaction: Transaction,
    origin: Origin,
    rank: int,
    alike: Alike,
    stack: Stack,
    samples: int | NDArray[np.int64] = 1,
) -> None:
    """Add samples to what is new in their buckets. ``samples``: as how many of them each row counts."""
    heap, rows = transaction.news(origin.run).samples, int(alike.positions.max(initial=-1)) + 1
    level = heap.level(transaction.connection, origin.run, alike.kind, rank)
    place, first, size = place_of(alike.positions), 0, bucket_size(level)
    buckets = (
        ((origin.first_step + record.step) // size, is_periodic(record.reason), record.scale)
        for record in alike.records
    )
    for (at, periodic, scale), same in groupby(buckets):
        last = first + len(list(same))
        bucket = Key(origin.run, alike.kind, rank, level, at, periodic, *scale_key(scale))
        heap.at(bucket, rows).add_all(place, stack.part(slice(first, last)), samples)
        first = last


def _sums(origin: Origin, places: Places, alike: Alike, stack: Stack) -> tuple[NDArray[np.int64], Real]:
    """The steps of samples of gradients, and the sums of each."""
    steps = origin.first_step + np.array([record.step for record in alike.records])
    scales = [record.scale for record in alike.records]
    return steps, gradient_sums(stack, places.formats[alike.indexes], scales)


def _enter_series(
    transaction: Transaction, origin: Origin, places: Places, told: Told, of_all: Told, *, sequence: int
) -> None:
    """Store the series of gradients: those of this rank, and its part in those of all ranks."""
    if told:
        steps, sums = (np.concatenate(parts) for parts in zip(*told, strict=True))
        enter_derived(transaction, origin, steps, gradient_series(sums), of_all="amax", sequence=sequence)
    if origin.merges:
        mine = [
            (step, GradientSums(*row))
            for steps, sums in of_all
            for step, row in zip(steps.tolist(), sums.tolist(), strict=True)
        ]
        gather(transaction, origin, "grad", mine, alone=places.share.alone, sequence=sequence)


def is_periodic(reason: str) -> bool:
    """Whether averages over time may use a sample; those taken after trouble, or on request, would bias them."""
    return reason == "periodic"


def _columns(origin: Origin, alike: Alike) -> dict[str, list[Any]]:
    """The columns of the rows, in the order in which they were told."""
    records, positions = alike.records, packed_positions(alike.positions)
    scales = [scale_key(record.scale) for record in records]
    return {
        "run": [origin.run] * len(records),
        "kind": [alike.kind] * len(records),
        "rank": [origin.rank] * len(records),
        "step": [origin.first_step + record.step for record in records],
        "segment": [origin.segment] * len(records),
        "at": [record.at for record in records],
        "reason": [record.reason for record in records],
        "scale": [scale for scale, _ in scales],
        "scale_flag": [flag for _, flag in scales],
        "micro_batches": [record.micro_batches for record in records],
        "positions": [positions] * len(records),
        **{name: [getattr(record.table, name) for record in records] for name in HEADER_AND_BODY},
    }
