"""One layer over many steps as the rows of one table: a measure is evaluated once for all steps that are alike.

Evaluated step by step, most of the time would go into calls with a single number each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Generic

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.exponents import Histograms
from scalescope.packing import Trimmed

from scalescope_server.figures.grid import Bucket
from scalescope_server.store.records import SampleBucket, Series, TallyBucket

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Alike(Generic[Bucket]):
    """Steps, rising, at which there are buckets of the same scales: ``parts`` have a row for each of ``steps``."""

    steps: NDArray[np.int64]
    parts: list[Bucket]


def alike(buckets: Sequence[Bucket], join: Callable[[Sequence[Bucket]], Bucket]) -> list[Alike[Bucket]]:
    """All steps of ``buckets``, which have one row each and are in order."""
    groups: defaultdict[object, list[list[Bucket]]] = defaultdict(list)
    for _, group in groupby(buckets, key=lambda bucket: bucket.step):
        parts = list(group)
        groups[tuple((part.scale, part.periodic) for part in parts)].append(parts)
    return [
        Alike(np.array([parts[0].step for parts in found]), [join(rows) for rows in zip(*found, strict=True)])
        for found in groups.values()
    ]


def series_of(read: Iterable[tuple[NDArray[np.int64], Values]]) -> Series:
    """What was read at steps, in any order; without those at which it is not known."""
    pairs = list(read)
    steps = np.concatenate([np.empty(0, np.int64), *(steps for steps, _ in pairs)])
    values = np.concatenate([np.empty(0), *(values for _, values in pairs)])
    order = np.argsort(steps, kind="stable")
    order = order[np.isfinite(values[order])]
    step, value = steps[order], values[order]
    ones, none = np.ones_like(step), np.zeros_like(step)
    return Series(step, ones, value, value, value, value, none, none)


def join_samples(buckets: Sequence[SampleBucket]) -> SampleBucket:
    """Buckets of one scale, their rows under one another."""
    table = Histograms.stack([bucket.table for bucket in buckets])
    samples = np.concatenate([bucket.samples for bucket in buckets])
    return SampleBucket(buckets[0].step, buckets[0].scale, buckets[0].periodic, samples, Trimmed.of(table))


def join_tallies(buckets: Sequence[TallyBucket]) -> TallyBucket:
    """Buckets of one scale with the same columns, their rows under one another."""
    columns = {name: np.concatenate([bucket.columns[name] for bucket in buckets]) for name in buckets[0].columns}
    tallies = np.concatenate([bucket.tallies for bucket in buckets])
    return TallyBucket(buckets[0].step, buckets[0].scale, buckets[0].periodic, tallies, columns)
