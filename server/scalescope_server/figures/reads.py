"""Reads of the store for figures, bounded by what a screen can show.

Series are bounded by points. A row of a sample is 254 counts, so samples are bounded by rows: parameters times
buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from scalescope.numerics.formats import FP16

from scalescope_server.figures.chart import Look
from scalescope_server.figures.grid import Bucket, Cadence, Grid, gridded
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
# Columns beside the range in which samples that stand for its ends are looked for: as far as budgets spread them.
_LOOK = (4, 16, 64, 128)
# What tiles say is of the last updates, not of the whole run.
RECENT = 50


@dataclass(frozen=True, slots=True)
class Wanted:
    """The updates ``start`` to ``stop`` (exclusive; None: open), at most ``points`` points, drawn in ``look``.

    ``rank``: whose lines; None: those of the run. Marks and walls are the run's own, whosever the lines are.
    """

    look: Look
    points: int
    start: int | None = None
    stop: int | None = None
    rank: int | None = None


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
    return reader.events(run, merged=True, kind="skip", start=max(run_length(detail) - RECENT, 0))[0]


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

    def read(start: int) -> Sequence[SampleBucket]:
        recent = replace(wanted, start=start, stop=None)
        return _samples(reader, run, recent, rows, detail, MAX_COLUMNS)[1]

    starts = (max(run_length(detail) - columns * detail.every, 0) for columns in _LOOK)
    periodic = [bucket for bucket in _first_of(map(read, starts), samples=1) if bucket.periodic]
    return walls(periodic[-1]) if periodic else None


def sampled_grid(
    reader: Reader, run: RunId, wanted: Wanted, rows: Sequence[ParameterRow], detail: RunDetail
) -> tuple[Grid[SampleBucket], list[SampleBucket], int]:
    """The samples of ``rows``, in columns for a heat map and as they are, and the steps in a bucket of these."""
    columns = min(MAX_COLUMNS, wanted.points)
    bucket, samples = _samples(reader, run, wanted, rows, detail, columns)
    # A whole number of buckets, so that each lies in one column, and at least one sample wide.
    width = -(-detail.every // bucket) * bucket

    def read(start: int, stop: int) -> Sequence[SampleBucket]:
        return _samples(reader, run, replace(wanted, start=start, stop=stop), rows, detail, columns)[1]

    cadence = cadence_of(wanted, detail, bucket)
    whole = with_neighbours(read, samples, width, cadence, run_length(detail))
    return gridded(whole, width, cadence), samples, bucket


def cadence_of(wanted: Wanted, detail: RunDetail, bucket: int) -> Cadence:
    length = run_length(detail)
    stop = length if wanted.stop is None else min(wanted.stop, length)
    return Cadence(detail.every, bucket, wanted.start, stop)


def with_neighbours(
    read: Callable[[int, int], Sequence[Bucket]], found: Sequence[Bucket], width: int, cadence: Cadence, length: int
) -> list[Bucket]:
    """``found`` with what was sampled before and after the range, where the ends of it may be stood for by those.

    Before it at least two samples, which say how far apart they come, if there are any within a hundred columns of
    ``width`` updates; after it one. ``read`` reads those of a range of the run, which is ``length`` updates long.
    """
    start, stop = cadence.start or 0, cadence.stop or length
    before: Sequence[Bucket] = ()
    after: Sequence[Bucket] = ()
    if start and (not found or found[0].step - start >= width):
        reaches = (max(start - columns * width, 0) for columns in _LOOK)
        before = _first_of((read(begin, start) for begin in reaches), samples=2)
    if stop < length and (not found or stop - found[-1].step > width):
        reaches = (min(stop + columns * width, length) for columns in _LOOK)
        after = _first_of((read(stop, end) for end in reaches), samples=1)
    return list(chain(before, found, after))


def _first_of(reads: Iterable[Sequence[Bucket]], *, samples: int) -> Sequence[Bucket]:
    """The first with so many periodic samples; else the last."""
    found: Sequence[Bucket] = ()
    for found in reads:
        if len({bucket.step for bucket in found if bucket.periodic}) >= samples:
            break
    return found


def _samples(
    reader: Reader, run: RunId, wanted: Wanted, rows: Sequence[ParameterRow], detail: RunDetail, columns: int
) -> tuple[int, list[SampleBucket]]:
    """(steps in a bucket, buckets) of the range, at most ``columns`` of them at one scale, fewer for many rows."""
    start, length = wanted.start or 0, run_length(detail)
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
    last = run_length(detail) - 1
    stop = last if wanted.stop is None else min(wanted.stop - 1, last)
    return float(wanted.start or 0), float(max(stop, wanted.start or 0))


def run_length(detail: RunDetail) -> int:
    return 0 if detail.summary.last_step is None else detail.summary.last_step + 1
