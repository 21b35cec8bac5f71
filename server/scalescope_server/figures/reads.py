"""Reads of the store for figures, bounded by what a screen can show.

Series are bounded by points. A row of a sample is 254 counts, so samples are bounded by rows: parameters times
buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scalescope.numerics.formats import FP16

from scalescope_server.figures.chart import Look
from scalescope_server.figures.grid import Grid, gridded
from scalescope_server.figures.marks import MAX_MARKS
from scalescope_server.figures.walls import Walls, compute_format, walls
from scalescope_server.store.levels import LEVELS, bucket_size
from scalescope_server.store.records import EventRow, ParameterRow, RunDetail, RunId, SampleBucket

if TYPE_CHECKING:
    from scalescope_server.store.reader import Reader

# 12,000 rows are 24 MB of counts and some 30 ms: a heat map of 100 layers keeps 120 columns.
MAX_SAMPLE_ROWS = 12_000
MAX_COLUMNS = 240
# Fewer would not be a picture; a model of more than 1,500 layers waits a little longer instead.
MIN_COLUMNS = 8
# Walls move slowly; more points than this only cost time.
WALL_POINTS = 120
# What tiles say is of the last updates, not of the whole run.
RECENT = 50


@dataclass(frozen=True, slots=True)
class Wanted:
    """The updates ``start`` to ``stop`` (exclusive; None: open), at most ``points`` points, drawn in ``look``."""

    look: Look
    points: int
    start: int | None = None
    stop: int | None = None


def marked_events(reader: Reader, run: RunId, wanted: Wanted) -> list[EventRow]:
    """The events of the range in order, no more than it takes to know that they are too many to draw one by one; then
    also those that tell where values turned non-finite, the first of them.
    """
    found: list[EventRow] = []
    cursor = None
    while len(found) <= MAX_MARKS:
        page, cursor = reader.events(run, merged=True, start=wanted.start, stop=wanted.stop, cursor=cursor)
        found += page
        if cursor is None:
            return found
    origins, _ = reader.events(
        run, merged=True, kind="nonfinite", start=wanted.start, stop=wanted.stop, limit=MAX_MARKS
    )
    return found + origins


def recent_skips(reader: Reader, run: RunId, detail: RunDetail) -> list[EventRow]:
    """The skips among the last ``RECENT`` updates."""
    return reader.events(run, merged=True, kind="skip", start=max(_length(detail) - RECENT, 0))[0]


def limited(detail: RunDetail) -> list[ParameterRow]:
    """The parameters that a loss scale is for, in the order in which their gradients are made, where that is known."""
    if detail.scaler is None:
        return []
    found = [p for p in detail.parameters if compute_format(p) is FP16]
    return sorted(found, key=lambda p: len(detail.parameters) if p.backward is None else p.backward)


def scale_walls(reader: Reader, run: RunId, wanted: Wanted, detail: RunDetail) -> list[Walls]:
    """The walls at the samples of the range, in order."""
    rows = limited(detail)
    if not rows:
        return []
    _, samples = _samples(reader, run, wanted, rows, detail, WALL_POINTS)
    return [walls(bucket) for bucket in samples]


def last_walls(reader: Reader, run: RunId, wanted: Wanted, detail: RunDetail) -> Walls | None:
    """The walls at the newest periodic sample."""
    rows = limited(detail)
    if not rows:
        return None
    recent = replace(wanted, start=max(_length(detail) - 3 * detail.every, 0), stop=None)
    _, samples = _samples(reader, run, recent, rows, detail, MAX_COLUMNS)
    periodic = [bucket for bucket in samples if bucket.periodic]
    return walls(periodic[-1]) if periodic else None


def sampled_grid(
    reader: Reader, run: RunId, wanted: Wanted, rows: Sequence[ParameterRow], detail: RunDetail
) -> tuple[Grid[SampleBucket], list[SampleBucket], int]:
    """The samples of ``rows``, in columns for a heat map and as they are, and the steps in a bucket of these."""
    bucket, samples = _samples(reader, run, wanted, rows, detail, min(MAX_COLUMNS, wanted.points))
    # A whole number of buckets, so that each lies in one column, and at least one sample wide.
    width = -(-detail.every // bucket) * bucket
    return gridded(samples, width), samples, bucket


def _samples(
    reader: Reader, run: RunId, wanted: Wanted, rows: Sequence[ParameterRow], detail: RunDetail, columns: int
) -> tuple[int, list[SampleBucket]]:
    """(steps in a bucket, buckets) of the range, at most ``columns`` of them at one scale, fewer for many rows."""
    start, length = wanted.start or 0, _length(detail)
    span = (length if wanted.stop is None else min(wanted.stop, length)) - start
    columns = max(min(columns, MAX_SAMPLE_ROWS // max(len(rows), 1)), MIN_COLUMNS)
    # As many samples as there may be columns are read one by one, however close they are.
    points = max(_buckets(span, detail.every, columns), columns)
    indexes = [row.index for row in rows]
    return reader.samples(run, start=wanted.start, stop=wanted.stop, points=points, parameters=indexes)


def _buckets(span: int, every: int, columns: int) -> int:
    """In how many buckets of the finest level ``span`` steps leave at most ``columns`` that hold a sample.

    With a sample ``every`` so many steps, smaller buckets are no more of them: most are empty.
    """
    sizes = [bucket_size(level) for level in range(1, LEVELS)]
    size = next((size for size in sizes if span <= columns * max(size, every)), sizes[-1])
    return max(span // size, 1) + 1


def shown_span(wanted: Wanted, detail: RunDetail) -> tuple[float, float]:
    """The first and last update of the range: the time axis of all its charts, however early their values end."""
    last = _length(detail) - 1
    stop = last if wanted.stop is None else min(wanted.stop - 1, last)
    return float(wanted.start or 0), float(max(stop, wanted.start or 0))


def _length(detail: RunDetail) -> int:
    return 0 if detail.summary.last_step is None else detail.summary.last_step + 1
