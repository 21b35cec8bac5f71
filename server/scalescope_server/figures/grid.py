"""Samples and tallies laid out in columns, as heat maps need them.

They come at odd updates: as often as a budget allows, and at each skipped one. A column is at least ``width`` updates
wide and tells how many samples it holds. Where the next sample is further away, a periodic one stands for the updates
until then; where samples are missing the column is empty, so that a silent stretch looks silent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from scalescope_server.figures.cadence import GROWN, holes
from scalescope_server.store.records import SampleBucket, TallyBucket

Bucket = TypeVar("Bucket", SampleBucket, TallyBucket)


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often samples come, and what of the updates is shown.

    Attributes:
        every: updates between two where no budget spreads them.
        grain: updates in a bucket.
        start, stop: the first update shown, and the one after the last; None: as far as there are samples.
    """

    every: int = 1
    grain: int = 1
    start: int | None = None
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class Grid(Generic[Bucket]):
    """``columns[i]`` holds the samples that updates ``begins[i]`` to ``begins[i + 1] - 1`` are shown by."""

    width: int
    begins: tuple[int, ...]
    columns: tuple[tuple[Bucket, ...], ...]

    @property
    def edges(self) -> list[float]:
        """Where columns begin, and where the last ends: from centres, Plotly would guess widths."""
        return [begin - 0.5 for begin in self.begins]

    @property
    def span(self) -> tuple[float, float]:
        return self.begins[0] - 0.5, self.begins[-1] - 0.5

    def told(self) -> list[str]:
        """Of each column what it stands for, and which sample it is where that is only one."""
        return [_told(column, *ends) for column, ends in zip(self.columns, pairwise(self.begins), strict=True)]


def gridded(buckets: Sequence[Bucket], width: int, cadence: Cadence | None = None) -> Grid[Bucket]:
    """``buckets`` in columns of ``width`` updates, aligned to multiples of it, or wider ones."""
    if not buckets:
        return Grid(width, (0,), ())
    cadence = cadence or Cadence()
    held: dict[int, list[Bucket]] = {}
    for bucket in sorted(buckets, key=lambda each: each.step):
        held.setdefault(bucket.step // width, []).append(bucket)
    reaches = _reaches(buckets, cadence)
    last = max(held)
    end = max((last + 1) * width, min(cadence.stop or 0, max(reaches.values(), default=0)))
    cells: list[tuple[int, list[Bucket]]] = []
    standing: list[Bucket] = []
    for (place, column), following in zip(held.items(), [*list(held)[1:], None], strict=True):
        periodic = [bucket for bucket in column if bucket.periodic]
        standing = periodic or standing
        cells.append((place * width, column))
        own, upto = (place + 1) * width, end if following is None else following * width
        if own < upto and not (periodic and reaches[periodic[-1].step] >= upto):
            reached = bool(standing) and reaches[standing[-1].step] >= upto
            cells.append((own, standing if reached else []))
    if cadence.stop is not None and end < cadence.stop:
        cells.append((end, []))
        end = cadence.stop
    return _shown(width, cells, end, cadence)


def column_grain(grid: Grid[SampleBucket] | Grid[TallyBucket], what: str) -> str:
    least = f"1 column = {grid.width:,} update{'s' if grid.width > 1 else ''}"
    wider = any(end - begin > grid.width for begin, end in pairwise(grid.begins))
    return f"{least}{', or up to the next sample' if wider else ''}, {what}"


def _reaches(buckets: Sequence[Bucket], cadence: Cadence) -> dict[int, int]:
    """Up to which update each periodic sample stands for what was not sampled."""
    steps = sorted({bucket.step for bucket in buckets if bucket.periodic})
    missing = holes(steps, cadence.every, grain=cadence.grain).tolist()
    found = {
        step: step + cadence.grain if hole else following
        for (step, following), hole in zip(pairwise(steps), missing, strict=True)
    }
    if steps:
        # The last one as long as the next may take, which may be twice as long as the one before it.
        before = steps[-1] - steps[-2] if len(steps) > 1 and not missing[-1] else 0
        found[steps[-1]] = steps[-1] + max(GROWN * before, cadence.every)
    return found


def _shown(width: int, cells: Sequence[tuple[int, list[Bucket]]], end: int, cadence: Cadence) -> Grid[Bucket]:
    """Those that lie within what is shown, or the part of them that does."""
    first, stop = cadence.start or 0, cadence.stop or end
    ends = [*(begin for begin, _ in cells[1:]), end]
    seen = [cell for cell, upto in zip(cells, ends, strict=True) if upto > first and cell[0] < stop]
    begins = [max(begin, first) for begin, _ in seen]
    # The last one is as wide as any, unless there is another behind what is shown.
    begins.append(end if cells[-1][0] < stop else stop)
    return Grid(width, tuple(begins), tuple(tuple(column) for _, column in seen))


def _told(column: Sequence[SampleBucket] | Sequence[TallyBucket], begin: int, end: int) -> str:
    updates = f"update {begin:,}" if end - begin == 1 else f"updates {begin:,} to {end - 1:,}"
    steps = sorted({bucket.step for bucket in column})
    if not steps:
        return f"{updates}: no sample"
    sampled = f"the sample of update {steps[0]:,}" if len(steps) == 1 else f"{len(steps):,} samples together"
    return f"{updates}, by {sampled}"
