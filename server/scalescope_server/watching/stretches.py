"""Stored updates as rules are evaluated over them: stretches, in order, with no more in them than the rules ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from scalescope_server.rules.dependence import Needs
from scalescope_server.rules.stretch import Sampled, Stretch, Told
from scalescope_server.store.judging import Position
from scalescope_server.store.reader import Reader
from scalescope_server.store.records import RunId
from scalescope_server.store.ticks import Column, Updates, Wanted
from scalescope_server.watching.layers import Measured, Span, read_layers

# Updates of one read: a few numbers each, so it stays small, and large enough that the reading costs little of it.
PIECE = 8192

# Which findings are open from an index of the steps on, till the next.
Openings = tuple[tuple[int, frozenset[str]], ...]
Open = Callable[[Updates], Openings]


def wanted_of(needs: Needs) -> Wanted:
    """What is read of the store to meet ``needs``."""
    return Wanted(needs.series, needs.ranks, bool(needs.measures))


def together(many: list[Needs]) -> Needs:
    """What all of them ask for."""
    return reduce(_both, many, Needs())


def read_stretches(
    reader: Reader,
    run: RunId,
    needs: Needs,
    after: Position,
    until: Position,
    *,
    limit: int = PIECE,
    opened: Open | None = None,
) -> list[Stretch]:
    """At most ``limit`` updates beyond ``after`` up to ``until``; a stretch is of one segment."""
    found, ranks = reader.updates_after(run, wanted_of(needs), after, until, limit)
    return [_stretch(reader, run, needs, updates, ranks, opened) for updates in found]


def all_stretches(
    reader: Reader, run: RunId, needs: Needs, after: Position, until: Position, opened: Open | None = None
) -> Iterator[Stretch]:
    """All of them, read piece by piece."""
    while some := read_stretches(reader, run, needs, after, until, opened=opened):
        yield from some
        after = end_of(some[-1])


def end_of(stretch: Stretch) -> Position:
    """The last update of it."""
    return Position(int(stretch.segment[-1]), int(stretch.step[-1]))


def _stretch(reader: Reader, run: RunId, needs: Needs, updates: Updates, ranks: int, opened: Open | None) -> Stretch:
    layers = {}
    if needs.measures:
        span = Span(run, int(updates.step[0]), int(updates.step[-1]), ranks)
        measured = read_layers(reader, span, needs.measures)
        layers = {name: _sampled(each, updates.step) for name, each in measured.items()}
    return Stretch(
        segment=updates.segments(),
        step=updates.step,
        at=updates.at,
        values={name: _told(column) for name, column in updates.values.items()},
        layers=layers,
        ranks={name: {rank: _told(column) for rank, column in by.items()} for name, by in updates.ranks.items()},
        findings=() if opened is None else opened(updates),
    )


def _sampled(measured: Measured, steps: NDArray[np.int64]) -> Sampled:
    """At those of ``steps``, rising, of which it tells."""
    places = np.minimum(steps.searchsorted(measured.steps), len(steps) - 1)
    there = steps[places] == measured.steps
    values = measured.values[there]
    return Sampled(measured.names, places[there], values, ~np.isnan(values))


def _told(column: Column) -> Told:
    return Told(column.values, column.told)


def _both(one: Needs, other: Needs) -> Needs:
    return Needs(
        series=one.series | other.series,
        measures=one.measures | other.measures,
        ranks=one.ranks | other.ranks,
        findings=one.findings or other.findings,
        pulses=one.pulses or other.pulses,
    )
