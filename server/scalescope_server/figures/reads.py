"""Reads of the store for figures, bounded by what a screen can show.

Series are bounded by points. A row of a sample is 254 counts, so samples are bounded by rows: parameters times
buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scalescope_server.figures.chart import Look
from scalescope_server.figures.grid import Grid, gridded
from scalescope_server.figures.marks import MAX_MARKS
from scalescope_server.figures.walls import Walls, compute_format, walls
from scalescope_server.store.records import EventRow, ParameterRow, RunDetail, RunId, SampleBucket

if TYPE_CHECKING:
    from scalescope_server.store.reader import Reader

# 12,000 rows are 24 MB of counts and some 30 ms: a heat map of 100 layers keeps 120 columns.
MAX_SAMPLE_ROWS = 12_000
MAX_COLUMNS = 240
# Fewer would not be a picture; a model of more than 1,500 layers waits a little longer instead.
MIN_COLUMNS = 8
# The flush wall moves slowly; more points than this only cost time.
WALL_POINTS = 120


@dataclass(frozen=True, slots=True)
class Wanted:
    """The updates ``start`` to ``stop`` (exclusive; None: open), at most ``points`` points, drawn in ``look``."""

    look: Look
    points: int
    start: int | None = None
    stop: int | None = None


def marked_events(reader: Reader, run: RunId, wanted: Wanted) -> list[EventRow]:
    """The events of the range in order, no more than it takes to know that they are too many to draw one by one."""
    found: list[EventRow] = []
    cursor = None
    while len(found) <= MAX_MARKS:
        page, cursor = reader.events(run, start=wanted.start, stop=wanted.stop, cursor=cursor)
        found += page
        if cursor is None:
            break
    return found


def limited(detail: RunDetail) -> list[ParameterRow]:
    """The parameters that a loss scale is for."""
    if detail.scaler is None:
        return []
    return [p for p in detail.parameters if compute_format(p).name == "fp16"]


def flush_walls(reader: Reader, run: RunId, wanted: Wanted, detail: RunDetail) -> list[Walls]:
    """The walls at the periodic samples of the range; none for models with too many layers to fold live."""
    rows = limited(detail)
    points = min(WALL_POINTS, MAX_SAMPLE_ROWS // max(len(rows), 1))
    if not rows or points < MIN_COLUMNS:
        return []
    _, samples = _samples(reader, run, rows, wanted.start, wanted.stop, points * detail.every)
    return [walls(bucket) for bucket in samples if bucket.periodic]


def last_walls(reader: Reader, run: RunId, detail: RunDetail) -> Walls | None:
    """The walls at the newest periodic sample."""
    rows, span = limited(detail), 3 * detail.every
    if not rows:
        return None
    _, samples = _samples(reader, run, rows, max(detail.summary.attempted - span, 0), None, span)
    periodic = [bucket for bucket in samples if bucket.periodic]
    return walls(periodic[-1]) if periodic else None


def sampled_grid(
    reader: Reader, run: RunId, wanted: Wanted, rows: Sequence[ParameterRow], every: int
) -> tuple[Grid, list[SampleBucket]]:
    """The samples of ``rows``, in columns for a heat map and as they are. ``every``: updates between samples."""
    columns = min(max(MAX_SAMPLE_ROWS // max(len(rows), 1), MIN_COLUMNS), MAX_COLUMNS, wanted.points)
    bucket, samples = _samples(reader, run, rows, wanted.start, wanted.stop, columns * every)
    # A whole number of buckets, so that each lies in one column, and at least one sample wide.
    width = -(-every // bucket) * bucket
    return gridded(samples, width), samples


def _samples(
    reader: Reader, run: RunId, rows: Sequence[ParameterRow], start: int | None, stop: int | None, points: int
) -> tuple[int, list[SampleBucket]]:
    indexes = [row.index for row in rows]
    return reader.samples(run, start=start, stop=stop, points=points, parameters=indexes)
