"""Many updates at once, as columns: what a million stored updates are read as."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from scalescope_server.rules.keys import merged
from scalescope_server.rules.ticks import Tick


class Told(Struct, frozen=True):
    """One series: ``values`` float64[n], ``told`` bool[n]. What stands in ``values`` where it was not told is free."""

    values: NDArray[np.float64]
    told: NDArray[np.bool_]

    def part(self, start: int, stop: int) -> Told:
        return Told(self.values[start:stop], self.told[start:stop])


class Sampled(Struct, frozen=True):
    """A measure of n layers or modules, ``names``, at the m updates that were sampled for it: ``at`` intp[m], rising.

    ``values`` float64[m, n], free where not ``known`` bool[m, n].
    """

    names: tuple[str, ...]
    at: NDArray[np.intp]
    values: NDArray[np.float64]
    known: NDArray[np.bool_]

    def part(self, start: int, stop: int) -> Sampled:
        first, last = self.at.searchsorted((start, stop)).tolist()
        return Sampled(self.names, self.at[first:last] - start, self.values[first:last], self.known[first:last])


class Stretch(Struct, frozen=True):
    """The ``n`` updates of as many ticks, in their order; each field says what that of ``Tick`` says.

    ``segment``, ``step``: int64[n]; ``at``: float64[n]. ``values``: by series. ``layers``: by measure. ``ranks``: by
    series and rank. ``findings``: which are open from an index on, till the next; before the first none is.
    """

    segment: NDArray[np.int64]
    step: NDArray[np.int64]
    at: NDArray[np.float64]
    values: Mapping[str, Told]
    layers: Mapping[str, Sampled] = {}
    ranks: Mapping[str, Mapping[int, Told]] = {}
    findings: tuple[tuple[int, frozenset[str]], ...] = ()

    def __len__(self) -> int:
        return len(self.step)

    def part(self, start: int, stop: int) -> Stretch:
        """The updates from index ``start`` to before ``stop``."""
        opened = [codes for index, codes in self.findings if index <= start][-1:]
        later = [(index - start, codes) for index, codes in self.findings if start < index < stop]
        return Stretch(
            self.segment[start:stop],
            self.step[start:stop],
            self.at[start:stop],
            {name: told.part(start, stop) for name, told in self.values.items()},
            {name: sampled.part(start, stop) for name, sampled in self.layers.items()},
            {name: {rank: told.part(start, stop) for rank, told in by.items()} for name, by in self.ranks.items()},
            (*((0, codes) for codes in opened), *later),
        )

    def ticks(self) -> Iterator[Tick]:
        """The same, one by one."""
        segments, steps, times = self.segment.tolist(), self.step.tolist(), self.at.tolist()
        values = {name: _listed(told) for name, told in self.values.items()}
        ranks = {name: {rank: _listed(told) for rank, told in by.items()} for name, by in self.ranks.items()}
        layers = {name: _by_index(sampled) for name, sampled in self.layers.items()}
        findings, opened = dict(self.findings), frozenset[str]()
        for index in range(len(steps)):
            opened = findings.get(index, opened)
            yield Tick(
                segments[index],
                steps[index],
                times[index],
                {name: told[index] for name, told in values.items()},
                {name: told[index] for name, told in layers.items() if index in told},
                {name: {rank: told[index] for rank, told in by.items()} for name, by in ranks.items()},
                opened,
            )


def stretch_of(ticks: Iterable[Tick]) -> Stretch:
    """``ticks`` as columns."""
    rows = list(ticks)
    names = {name for tick in rows for name in tick.values}
    by_rank = {(name, rank) for tick in rows for name, by in tick.ranks.items() for rank in by}
    ranks: dict[str, dict[int, Told]] = {}
    for name, rank in sorted(by_rank):
        ranks.setdefault(name, {})[rank] = _told(tick.ranks.get(name, {}).get(rank) for tick in rows)
    return Stretch(
        np.array([tick.segment for tick in rows], np.int64),
        np.array([tick.step for tick in rows], np.int64),
        np.array([tick.at for tick in rows], np.float64),
        {name: _told(tick.values.get(name) for tick in rows) for name in names},
        {name: _sampled(name, rows) for name in {name for tick in rows for name in tick.layers}},
        ranks,
        tuple((index, tick.findings) for index, tick in enumerate(rows)),
    )


def _listed(column: Told) -> list[float | None]:
    values: list[float | None] = column.values.tolist()
    if column.told.all():
        return values
    return [value if told else None for value, told in zip(values, column.told.tolist(), strict=True)]


def _told(values: Iterable[float | None]) -> Told:
    listed = list(values)
    told = np.array([value is not None for value in listed], np.bool_)
    return Told(np.array([0.0 if value is None else value for value in listed], np.float64), told)


def _by_index(sampled: Sampled) -> dict[int, dict[str, float]]:
    rows = zip(sampled.at.tolist(), sampled.values.tolist(), sampled.known.tolist(), strict=True)
    return {
        index: {name: value for name, value, known in zip(sampled.names, values, knowns, strict=True) if known}
        for index, values, knowns in rows
    }


def _sampled(measure: str, ticks: Sequence[Tick]) -> Sampled:
    told = {index: tick.layers[measure] for index, tick in enumerate(ticks) if measure in tick.layers}
    names = reduce(merged, (tuple(by_name) for by_name in told.values()))
    values = [[by_name.get(name) for name in names] for by_name in told.values()]
    known = np.array([[value is not None for value in row] for row in values], np.bool_)
    shape = (len(told), len(names))
    return Sampled(
        names, np.array(list(told), np.intp), np.array(values, np.float64).reshape(shape), known.reshape(shape)
    )
