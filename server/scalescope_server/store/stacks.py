"""Samples unpacked together: one array for many of them, so that each step of the work is done once for all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.exponents import MIN_EXPONENT
from scalescope.packing import (
    SIGNED,
    PackedError,
    PackedHistograms,
    Trimmed,
    counts_in,
    opened,
    opened_together,
    unpack_trimmed,
    values_of,
)
from scalescope.wire import Sample

from scalescope_server.store.errors import BadRecord
from scalescope_server.store.stack_kernel import MANY, NUMBA

# No tensor is larger, and 8**8 samples of this size still add up within int64.
MAX_NUMEL = 2**38
# Counts in one stack, 2 MB of them: what stays in a processor's cache while it is worked on.
CELLS = 2**18
# Samples in one stack, whatever they hold: so many of the largest tensors still add up exactly as float64.
MOST = 2**53 // MAX_NUMEL

Real = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """Histograms [samples, rows] of samples that have the same rows.

    Attributes:
        low: exponent of the first column; the columns outside are zero.
        counts: float64 [samples, rows, columns], whole numbers that add up to at most ``MAX_NUMEL`` in a row.
        classes: int64 [samples, 3, rows], how many are zero, infinite and NaN.
        amax, sum_squares: float64 [samples, rows].
    """

    low: int
    counts: Real
    classes: NDArray[np.int64]
    amax: Real
    sum_squares: Real

    @property
    def end(self) -> int:
        """One more than the exponent of the last column."""
        return self.low + int(self.counts.shape[2])

    @staticmethod
    def of(table: Trimmed) -> Stack:
        """One sample by itself."""
        counts = table.counts.astype(np.float64)[None]
        return Stack(table.low, counts, table.classes[None], table.amax[None], table.sum_squares[None])

    def take(self, rows: NDArray[np.int64]) -> Stack:
        """The named rows of every sample, in that order."""
        # Not by an index, which lays the samples of a row side by side.
        counts, classes = self.counts.take(rows, axis=1), self.classes.take(rows, axis=2)
        return Stack(self.low, counts, classes, self.amax.take(rows, axis=1), self.sum_squares.take(rows, axis=1))

    def part(self, samples: slice) -> Stack:
        """Some of the samples."""
        counts, classes = self.counts[samples], self.classes[samples]
        return Stack(self.low, counts, classes, self.amax[samples], self.sum_squares[samples])


def stacked(records: Sequence[Sample]) -> Iterator[tuple[slice, Stack]]:
    """(which of the records, their stack), in order. All have the same number of rows.

    A stack is good until the next one is asked for: its room is used again, which the processor's cache still holds.

    Raises:
        BadRecord: if a table is not what its header says, or cannot be one of counts.
    """
    low, end = _columns([record.table for record in records])
    shape = (records[0].table.rows, end - low)
    if len(records) * math.prod(shape) > MANY:
        NUMBA.ask()
    together = min(max(CELLS // max(math.prod(shape), 1), 1), MOST, len(records))
    room = np.empty((together, *shape))
    for first in range(0, len(records), together):
        piece = slice(first, min(first + together, len(records)))
        yield piece, _stack(records[piece], low, room)


def _columns(tables: Sequence[PackedHistograms]) -> tuple[int, int]:
    """The exponents of the first column that any of the tables has, and of the one behind the last."""
    used = [table for table in tables if table.bins]
    if not used:
        return MIN_EXPONENT, MIN_EXPONENT
    return min(table.low for table in used), max(table.low + table.bins for table in used)


def _stack(piece: Sequence[Sample], low: int, room: Real) -> Stack:
    raws, tables, room = _opened(piece), [record.table for record in piece], room[: len(piece)]
    found = NUMBA.attempt(lambda kernel: kernel.unpack(tables, raws, low, MAX_NUMEL, room))
    classes, amax, sum_squares, good = found or by_numpy(tables, raws, low, room)
    if not good:
        for record in piece:
            _check(record)
    return Stack(low, room, classes, amax, sum_squares)


def _opened(piece: Sequence[Sample]) -> list[memoryview]:
    try:
        return opened_together([record.table for record in piece])
    except PackedError:
        # One of them, or all where there is no room for them together.
        return [_opened_alone(record) for record in piece]


def _opened_alone(record: Sample) -> memoryview:
    try:
        return memoryview(opened(record.table))
    except PackedError as error:
        raise BadRecord("sample", record.sequence, str(error)) from error


def by_numpy(
    tables: Sequence[PackedHistograms], raws: Sequence[memoryview], low: int, room: Real
) -> tuple[NDArray[np.int64], Real, Real, bool]:
    """As :meth:`StackKernel.unpack` has it."""
    tails = []
    for table, raw, counts in zip(tables, raws, room, strict=True):
        read, tail = counts_in(raw, table)
        first = table.low - low if table.bins else 0
        last = first + table.bins
        counts[:, :first], counts[:, first:last], counts[:, last:] = 0, read, 0
        tails.append(tail)
    values = values_of(tails, room.shape[1])
    return *values, _makes_sense(Stack(low, room, *values), has_signs=any(table.width == SIGNED for table in tables))


def _makes_sense(stack: Stack, *, has_signs: bool) -> bool:
    """Whether no sample of them has to be looked at by itself. ``has_signs``: its counts were packed with them."""
    elements = stack.counts @ np.ones(stack.counts.shape[2]) + stack.classes.sum(axis=1, dtype=np.float64)
    signed = [stack.classes, stack.amax, stack.sum_squares, *([stack.counts] if has_signs else [])]
    # NaN is in no order.
    positive = all(part.min(initial=0) >= 0 for part in signed)
    return positive and bool(elements.max(initial=0) <= MAX_NUMEL and stack.amax.max(initial=0) < np.inf)


def _check(record: Sample) -> None:
    """Raise what is wrong with a record, if it is this one."""
    try:
        table = unpack_trimmed(record.table)
    except PackedError as error:
        raise BadRecord("sample", record.sequence, str(error)) from error
    counted = table.counts.sum(axis=1, dtype=np.float64) + table.classes.sum(axis=0, dtype=np.float64)
    if counted.max(initial=0) > MAX_NUMEL:
        _refuse(record, f"expected tensors of at most {MAX_NUMEL} elements, got a larger one")
    if (table.sum_squares < 0).any():
        _refuse(record, "expected sums of squares of at least 0, got a negative one")


def _refuse(record: Sample, message: str) -> None:
    raise BadRecord("sample", record.sequence, message)
