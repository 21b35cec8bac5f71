"""Histograms as bytes: trimmed to the exponents in use, byte-shuffled, zstd level 1.

Used on the wire and in the store. Decoding is bounded: the size that a zstd frame states is checked against
the size that the header implies *before* anything is decompressed, and a frame that states none is refused
(a 33 kB frame can hold a gigabyte, and zstandard's ``max_output_size`` is ignored when a size is stated).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
import numpy as np
import zstandard
from msgspec import Meta
from numpy.typing import NDArray

from scalescope.numerics.exponents import BINS, MIN_EXPONENT, Histograms

# A model of 20,000 tensors with every exponent in use, eight bytes wide, is 41 MB.
MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_ROWS = 20_000

# The widest counts, in bytes, have a sign, as sums of them do.
SIGNED = 8

_COLUMNS_OF_COUNTS = 3
_COLUMNS_OF_VALUES = 2


class _Zstd(threading.local):
    """What compresses and what decompresses, of each thread its own: making them takes longer than using them."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()


class PackedHistograms(msgspec.Struct, array_like=True, frozen=True):
    """A :class:`Histograms` table in transit.

    Attributes:
        rows: number of tensors.
        low: exponent of the first kept column; the columns outside are zero.
        bins: number of kept columns.
        width: bytes of one count, 1, 2, 4 or 8.
        body: zstd of counts [rows, bins], then zero, inf, nan as uint64 [rows], then amax and sum of squares
            as float64 [rows]; each part byte-shuffled, little-endian.
    """

    rows: Annotated[int, Meta(ge=0, le=MAX_ROWS)]
    low: Annotated[int, Meta(ge=MIN_EXPONENT, le=MIN_EXPONENT + BINS)]
    bins: Annotated[int, Meta(ge=0, le=BINS)]
    width: Annotated[int, Meta(ge=1, le=8)]
    body: bytes


class PackedError(ValueError):
    """Bytes that are not a histogram table this version reads; the message says what is wrong."""


@dataclass(frozen=True, slots=True, eq=False)
class Trimmed:
    """A :class:`Histograms` table without the columns outside those in use, a fifth of it as a rule.

    Attributes:
        low: exponent of the first column; the columns outside are zero.
        counts: [rows, bins] of any type of whole numbers.
        classes: int64 [3, rows], how many are zero, infinite and NaN.
        amax, sum_squares: as in :class:`Histograms`.
    """

    low: int
    counts: NDArray[np.integer]
    classes: NDArray[np.int64]
    amax: NDArray[np.float64]
    sum_squares: NDArray[np.float64]

    @staticmethod
    def empty(rows: int) -> Trimmed:
        """``rows`` histograms of tensors without elements."""
        none = np.zeros((rows, 0), np.int64)
        return Trimmed(MIN_EXPONENT, none, np.zeros((3, rows), np.int64), *np.zeros((2, rows)))

    @staticmethod
    def of(table: Histograms) -> Trimmed:
        """``table`` as it is, with every column."""
        classes = np.stack([table.zero, table.inf, table.nan])
        return Trimmed(MIN_EXPONENT, table.counts, classes, table.amax, table.sum_squares)

    @property
    def rows(self) -> int:
        return len(self.amax)

    @property
    def nonfinite(self) -> NDArray[np.int64]:
        """int64 [rows]: values that are infinite or NaN."""
        return np.asarray(self.classes[1] + self.classes[2])

    def any(self) -> bool:
        """Whether a row has an element."""
        return bool(self.counts.any() or self.classes.any())

    @property
    def end(self) -> int:
        """One more than the exponent of the last column."""
        return self.low + int(self.counts.shape[1])

    def take(self, rows: NDArray[np.integer]) -> Trimmed:
        """The named rows, in that order."""
        return Trimmed(self.low, self.counts[rows], self.classes[:, rows], self.amax[rows], self.sum_squares[rows])

    def widened(self, low: int, end: int) -> Trimmed:
        """The same, where it lacks columns of the exponents ``low`` to ``end - 1``, with all of these."""
        if low >= end or (self.low <= low and end <= self.end):
            return self
        if self.low < self.end:
            low, end = min(low, self.low), max(end, self.end)
        counts = np.zeros((self.rows, end - low), self.counts.dtype)
        first = max(self.low - low, 0)
        counts[:, first : first + self.counts.shape[1]] = self.counts
        return replace(self, low=low, counts=counts)

    def whole(self) -> Histograms:
        """The same with every column."""
        counts = np.zeros((self.rows, BINS), np.int64)
        first = self.low - MIN_EXPONENT
        counts[:, first : first + self.counts.shape[1]] = self.counts
        zero, inf, nan = self.classes
        return Histograms(counts, zero, inf, nan, self.amax, self.sum_squares)


def pack(table: Histograms) -> PackedHistograms:
    return pack_trimmed(Trimmed.of(table))


def pack_trimmed(table: Trimmed) -> PackedHistograms:
    """The same of a table without all its columns; those at its edges may be zero."""
    used = np.flatnonzero(table.counts.any(axis=0))
    first, end = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 0)
    low = table.low + first if used.size else MIN_EXPONENT
    counts = table.counts[:, first:end]
    width = _width_for(int(counts.max(initial=0)))
    real = np.concatenate([table.amax, table.sum_squares]).astype("<f8")
    raw = _shuffled(counts.astype(f"<u{width}")) + _shuffled(table.classes.astype("<u8")) + _shuffled(real)
    return PackedHistograms(table.rows, low, end - first, width, compress(raw))


def unpack(packed: PackedHistograms, rows: NDArray[np.int64] | None = None) -> Histograms:
    """The table that was packed, or these of its ``rows`` alone: the others are not made into counts, nor checked.

    Raises:
        PackedError: if the header is out of bounds, or the body is not exactly what the header implies.
    """
    return unpack_trimmed(packed, rows).whole()


def unpack_trimmed(packed: PackedHistograms, rows: NDArray[np.int64] | None = None) -> Trimmed:
    """The same with the columns that were kept alone. Raises :class:`PackedError` as :func:`unpack` does."""
    sizes = part_sizes(packed)
    raw = np.frombuffer(decompress(packed.body, expected=sum(sizes)), np.uint8)
    kept, whole, real = raw[: sizes[0]], raw[sizes[0] : sizes[0] + sizes[1]], raw[sizes[0] + sizes[1] :]
    # A row of counts is a row, one of the other values is a column.
    counts = _some_unshuffled(kept, _type_of(packed.width), (packed.rows, packed.bins), rows, 0)
    classes = _some_unshuffled(whole, "<i8", (_COLUMNS_OF_COUNTS, packed.rows), rows, 1)
    amax, squares = _some_unshuffled(real, "<f8", (_COLUMNS_OF_VALUES, packed.rows), rows, 1)
    table = Trimmed(packed.low, counts, classes, amax, squares)
    _check_values(table)
    return table


def opened(packed: PackedHistograms) -> bytes:
    """What a table unpacks to. Nothing but the sizes is checked.

    Raises:
        PackedError: if the header is out of bounds, or the body is not as long as it implies.
    """
    return decompress(packed.body, expected=sum(part_sizes(packed)))


def opened_together(tables: Sequence[PackedHistograms]) -> list[memoryview]:
    """The same of many tables in one call: beside a busy thread each call waits to have Python's lock back.

    Raises:
        PackedError: if that cannot be done with one of them, which :func:`opened` finds.
    """
    sizes = [sum(part_sizes(table)) for table in tables]
    for table, size in zip(tables, sizes, strict=True):
        _check_stated(table.body, size)
    # Not every build of zstandard has it.
    together = getattr(_zstd.decompressor, "multi_decompress_to_buffer", None)
    if together is None or not all(sizes):
        return [memoryview(opened(table)) for table in tables]
    bodies, stated = [table.body for table in tables], np.array(sizes, np.uint64)
    try:
        found = together(bodies, decompressed_sizes=stated.tobytes())
    except zstandard.ZstdError as error:
        raise PackedError(f"a zstd frame is damaged: {error}") from error
    return [memoryview(found[i]) for i in range(len(bodies))]


def counts_in(raw: memoryview, packed: PackedHistograms) -> tuple[NDArray[np.integer], memoryview]:
    """(counts [rows, bins]; what is packed behind them, for :func:`values_of`) of an opened table."""
    edge = packed.rows * packed.bins * packed.width
    kept = np.frombuffer(raw, np.uint8, edge)
    return _unshuffled(kept, _type_of(packed.width), (packed.rows, packed.bins)), raw[edge:]


def values_of(
    tails: Sequence[memoryview], rows: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """What lies behind the counts of several tables: (classes [tables, 3, rows], amax and squares [tables, rows])."""
    raw, edge = np.frombuffer(b"".join(tails), np.uint8).reshape(len(tails), -1), _COLUMNS_OF_COUNTS * rows * 8
    classes = _unshuffled(raw[:, :edge], "<i8", (len(tails), _COLUMNS_OF_COUNTS, rows))
    real = _unshuffled(raw[:, edge:], "<f8", (len(tails), _COLUMNS_OF_VALUES, rows))
    return classes, real[:, 0], real[:, 1]


def compress(raw: bytes) -> bytes:
    """``raw`` as one zstd frame that states its size."""
    return _zstd.compressor.compress(raw)


def decompress(body: bytes, *, expected: int) -> bytes:
    """The content of one zstd frame that states it is ``expected`` bytes long.

    Raises:
        PackedError: if the frame states another size or none, is longer than stated, or is damaged.
    """
    _check_stated(body, expected)
    try:
        return _zstd.decompressor.decompress(body) if expected else b""
    except zstandard.ZstdError as error:
        raise PackedError(f"the zstd frame is damaged: {error}") from error


def _check_stated(body: bytes, expected: int) -> None:
    try:
        stated = zstandard.get_frame_parameters(body).content_size
    except zstandard.ZstdError as error:
        raise PackedError(f"the zstd frame is damaged: {error}") from error
    if stated != expected or expected > MAX_BODY_BYTES:
        raise PackedError(f"expected a zstd frame that states {expected} bytes, got one that states {stated}")


def part_sizes(packed: PackedHistograms) -> list[int]:
    """The bytes of the counts, the classes and the values that a table unpacks to.

    Raises:
        PackedError: if its header is out of bounds.
    """
    fits = (
        0 <= packed.rows <= MAX_ROWS
        and packed.bins >= 0
        and packed.width in (1, 2, 4, 8)
        and packed.low >= MIN_EXPONENT
        and packed.low + packed.bins <= MIN_EXPONENT + BINS
    )
    if not fits:
        raise PackedError(
            f"expected at most {MAX_ROWS} rows and exponents within [-126, 127], "
            f"got rows={packed.rows} low={packed.low} bins={packed.bins} width={packed.width}"
        )
    return [
        packed.rows * packed.bins * packed.width,
        _COLUMNS_OF_COUNTS * packed.rows * 8,
        _COLUMNS_OF_VALUES * packed.rows * 8,
    ]


def _check_values(table: Trimmed) -> None:
    counts_fit = table.counts.dtype.kind == "u" or table.counts.min(initial=0) >= 0
    # NaN is in no order.
    amax_fits = table.amax.min(initial=0) >= 0 and table.amax.max(initial=0) < np.inf
    if not (counts_fit and amax_fits and table.classes.min(initial=0) >= 0) or np.isnan(table.sum_squares).any():
        raise PackedError("expected counts of at least 0 and finite amax, got a negative or non-finite value")


def _type_of(width: int) -> str:
    return f"<u{width}" if width < SIGNED else "<i8"


def _width_for(largest: int) -> int:
    return next(width for width in (1, 2, 4, 8) if largest < 1 << (8 * width))


def _shuffled(values: NDArray[np.generic]) -> bytes:
    """All first bytes, then all second bytes, ...: neighbours of one weight compress well together."""
    plain = np.ascontiguousarray(values).view(np.uint8).reshape(-1, values.dtype.itemsize)
    return plain.T.tobytes()


def _some_unshuffled(
    raw: NDArray[np.uint8], dtype: str, shape: tuple[int, int], rows: NDArray[np.int64] | None, axis: int
) -> NDArray[Any]:
    """The values of ``shape``, or of them only ``rows`` along ``axis``."""
    if rows is not None:
        raw = raw.reshape(np.dtype(dtype).itemsize, *shape).take(rows, axis + 1)
        shape = (len(rows), shape[1]) if axis == 0 else (shape[0], len(rows))
    return _unshuffled(raw, dtype, shape)


def _unshuffled(raw: NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The values of ``shape``; of a table in each row of ``raw``, where it has the three dimensions of several."""
    size = np.dtype(dtype).itemsize
    tables = shape[0] if len(shape) == 3 else 1
    planes = raw.reshape(tables, size, -1)
    found = np.empty((tables, planes.shape[2], size), np.uint8)
    # One byte after the other: numpy is slow to transpose a few long rows.
    for byte in range(size):
        found[:, :, byte] = planes[:, byte]
    return found.view(dtype).reshape(shape)
