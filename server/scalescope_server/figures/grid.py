"""Samples and tallies laid out in even columns, as heat maps need them.

They come at odd updates: every tenth, and each skipped one. A column covers ``width`` updates and tells how
many samples it holds; columns without any stay empty, so a silent stretch looks silent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from scalescope_server.store.records import SampleBucket, TallyBucket

Bucket = TypeVar("Bucket", SampleBucket, TallyBucket)


@dataclass(frozen=True, slots=True)
class Grid(Generic[Bucket]):
    """``columns[i]`` holds the samples of updates ``first + i * width`` to ``first + (i + 1) * width - 1``."""

    first: int
    width: int
    columns: tuple[tuple[Bucket, ...], ...]

    @property
    def edges(self) -> list[float]:
        """Where columns begin, and where the last ends: from centres, Plotly would guess widths."""
        return [self.first + i * self.width - 0.5 for i in range(len(self.columns) + 1)]

    @property
    def span(self) -> tuple[float, float]:
        return self.first - 0.5, self.first + self.width * len(self.columns) - 0.5


def gridded(buckets: Sequence[Bucket], width: int) -> Grid[Bucket]:
    """``buckets`` in columns of ``width`` updates, aligned to multiples of it."""
    if not buckets:
        return Grid(0, width, ())
    first = min(b.step for b in buckets) // width
    columns: list[list[Bucket]] = [[] for _ in range(max(b.step for b in buckets) // width - first + 1)]
    for bucket in buckets:
        columns[bucket.step // width - first].append(bucket)
    return Grid(first * width, width, tuple(map(tuple, columns)))


def column_grain(grid: Grid[SampleBucket] | Grid[TallyBucket], what: str) -> str:
    return f"1 column = {grid.width:,} update{'s' if grid.width > 1 else ''}, {what}"
