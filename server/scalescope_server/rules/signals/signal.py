"""A signal: one value of the run at each update, or one for each layer, module or rank; or none that is known.

It moves on by one update (``tick``) or by many at once (``over``); both leave it in the same state, and say the same of
each update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from scalescope_server.rules.keys import Key
from scalescope_server.rules.stretch import Stretch
from scalescope_server.rules.ticks import RunState

# What is told of a layer, a rank or a series holds until it is told again, at most for so many updates: hardly a
# training samples or logs less often, and an evaluator has to be restored from a bounded past.
HOLD_UPDATES = 10_000

# What a condition compared, and whose it is.
Evidence = tuple[float | None, Key | None]
NO_EVIDENCE: Evidence = (None, None)


class Now(Struct):
    """The update that is evaluated, or the moment without one (``is_update`` False).

    ``place``: its number, from 0 where the evaluation began: steps that nobody told of count. ``at``: in seconds,
    never earlier than before. ``silent_s``: how long ago the last update was, None where there was none.
    """

    place: int = -1
    at: float = -math.inf
    is_update: bool = False
    state: RunState = "running"
    silent_s: float | None = None
    values: Mapping[str, float | None] = {}
    layers: Mapping[str, Mapping[str, float]] = {}
    ranks: Mapping[str, Mapping[int, float | None]] = {}
    findings: frozenset[str] = frozenset()


class Span(Struct, frozen=True):
    """A stretch with the places (int64[n]) and times (float64[n], never falling) of its updates."""

    stretch: Stretch
    place: NDArray[np.int64]
    at: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.place)


class Column(Struct, frozen=True):
    """A signal at the n updates of a stretch: ``values`` float64[n] or bool[n], free where it is not ``known``.

    ``fresh``: bool[n]; ``bound``: int8[n]; as in ``Signal``.
    """

    values: NDArray[np.float64] | NDArray[np.bool_]
    known: NDArray[np.bool_]
    fresh: NDArray[np.bool_]
    bound: NDArray[np.int8]


class Moving:
    """What all signals have in common.

    ``fresh``: something that it rests on was told at this update; only then it enters a window. ``moved``: it may
    differ from before.
    """

    __slots__ = ("fresh", "moved")

    def __init__(self) -> None:
        self.fresh = False
        self.moved = False

    def tick(self, now: Now) -> None:
        """Move on to ``now``; what it rests on has."""
        raise NotImplementedError

    def over(self, span: Span) -> None:
        """Move on by all updates of ``span``; what it rests on has."""
        raise NotImplementedError

    def settle(self) -> None:
        """Forget the updates of the last stretch but what holds after it."""

    def evidence(self, index: int | None) -> Evidence:
        """At ``index`` of the last stretch, or after the last tick (None)."""
        raise NotImplementedError


class Signal(Moving):
    """A number or a truth of the run as a whole.

    ``value``: None where it is not known. ``bound``: 0, it is what it says; 1, its window has not filled, and what it
    says so far can only grow; -1, can only fall. ``column``: what it was over the last stretch, until it is settled.
    """

    __slots__ = ("bound", "column", "value")

    def __init__(self) -> None:
        super().__init__()
        self.value: float | None = None
        self.bound = 0
        self.column: Column | None = None

    def stretch(self, span: Span) -> Column:
        """What it is over ``span``; what it rests on has moved on."""
        raise NotImplementedError

    def over(self, span: Span) -> None:
        column = self.stretch(span)
        last = len(span) - 1
        self.column = column
        self.value = column.values[last].item() if column.known[last] else None
        self.bound = int(column.bound[last])
        self.moved = True

    def settle(self) -> None:
        self.column = None

    def at(self, index: int | None) -> float | None:
        """The value at ``index`` of the last stretch, or after the last tick (None)."""
        if index is None or self.column is None:
            return self.value
        return self.column.values[index].item() if self.column.known[index] else None

    def evidence(self, index: int | None) -> Evidence:
        return self.at(index), None


def columns_of(operands: Sequence[Signal]) -> list[Column]:
    """What they were over the last stretch."""
    return [operand.column for operand in operands if operand.column is not None]


def unbounded(length: int) -> NDArray[np.int8]:
    return np.zeros(length, np.int8)
