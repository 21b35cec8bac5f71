"""What a rule has to be fed with, and from how far back it is to be restored."""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch
from typing import NamedTuple

from msgspec import Struct

from scalescope_server.rules.expression import (
    MOST_UPDATES,
    Across,
    And,
    Arithmetic,
    Comparison,
    Condition,
    Counted,
    Duration,
    Finding,
    Flag,
    Matching,
    Measured,
    Negative,
    Nonfinite,
    Not,
    NoUpdate,
    Number,
    OfRanks,
    Often,
    Or,
    Over,
    Pointwise,
    RankDisagreement,
    RunIs,
    Series,
    Updates,
    Value,
)
from scalescope_server.rules.signals.signal import HOLD_UPDATES

Tree = Value | Condition


class Needs(Struct, frozen=True):
    """What of an update is looked at. ``findings``: which are open; ``pulses``: that time passes."""

    series: frozenset[str] = frozenset()
    measures: frozenset[str] = frozenset()
    ranks: frozenset[str] = frozenset()
    findings: bool = False
    pulses: bool = False


class Lookback(NamedTuple):
    """The past that an evaluator has to see again to know what it knew.

    From the last update that was judged, go back by ``updates`` updates or by ``seconds``, whichever is farther; from
    there again, ``times`` in all, since a window may hold what was taken from another one. Updates count, not steps.
    ``most``: of updates that are within the seconds.
    """

    updates: int = 0
    seconds: float = 0.0
    times: int = 0
    most: int = 0


def needs(condition: Tree) -> Needs:
    """What a rule with this condition, or a part of one, is to be fed with."""
    parts = list(_walk(condition))
    return Needs(
        series=frozenset(part.name for part in parts if isinstance(part, Series)),
        measures=frozenset(part.measure for part in parts if isinstance(part, Measured)),
        ranks=frozenset(part.series for part in parts if isinstance(part, (OfRanks, RankDisagreement))),
        findings=any(isinstance(part, Finding) for part in parts),
        pulses=any(isinstance(part, (NoUpdate, RunIs)) for part in parts),
    )


def silences(condition: Condition) -> set[float]:
    """For how many seconds without an update it asks."""
    return {part.within.seconds for part in _walk(condition) if isinstance(part, NoUpdate)}


def asks_state(condition: Condition) -> bool:
    """Whether it asks what state the run is in."""
    return any(isinstance(part, RunIs) for part in _walk(condition))


def lookback(condition: Condition) -> Lookback:
    """How far back this condition reaches from an update at which it is judged."""
    return _reach(condition).at_any


class _Reach(NamedTuple):
    """How far a tree's value reaches back: from an update at which it is told anew, and from any."""

    at_told: Lookback
    at_any: Lookback


_NONE = Lookback()
_HELD = Lookback(updates=HOLD_UPDATES, times=1)


@singledispatch
def _reach(tree: Tree) -> _Reach:
    """That of a leaf, and of what is worked out of its parts at once."""
    if isinstance(tree, (Series, Measured, OfRanks, RankDisagreement)):
        return _Reach(_NONE, _HELD)
    parts = [_reach(part) for part in _parts(tree) if not isinstance(part, Number)]
    at_any = _farthest([part.at_any for part in parts])
    # Of several parts some may have been told earlier than the one that is told now.
    return _Reach(parts[0].at_told if len(parts) == 1 else at_any, at_any)


@_reach.register
def _(tree: Over) -> _Reach:
    return _windowed(tree.of, tree.window)


@_reach.register
def _(tree: Counted) -> _Reach:
    return _windowed(tree.of, tree.window)


@_reach.register
def _(tree: Often) -> _Reach:
    return _windowed(tree.of, Updates(tree.updates))


def _windowed(of: Tree, window: Duration) -> _Reach:
    told = _reach(of).at_told
    # The value is held until what was told last has left the window; a window ended there.
    return _Reach(_then(_back(window, 1), told), _then(_back(window, 2), told))


def _back(window: Duration, windows: int) -> Lookback:
    if isinstance(window, Updates):
        return Lookback(updates=windows * window.count, times=1)
    return Lookback(seconds=windows * window.seconds, times=1, most=windows * (MOST_UPDATES + 1))


def _then(one: Lookback, other: Lookback) -> Lookback:
    farthest = max(one.updates, other.updates), max(one.seconds, other.seconds)
    return Lookback(*farthest, one.times + other.times, max(one.most, other.most))


def _farthest(many: list[Lookback]) -> Lookback:
    return Lookback(*(max(each) for each in zip(*many, strict=True))) if many else _NONE


def _walk(tree: Tree) -> Iterator[Tree]:
    yield tree
    for part in _parts(tree):
        yield from _walk(part)


def _parts(tree: Tree) -> tuple[Tree, ...]:
    """What it is made of; nothing of a leaf."""
    if isinstance(tree, (And, Or)):
        return tree.of
    if isinstance(tree, (Arithmetic, Comparison)):
        return (tree.left, tree.right)
    if isinstance(tree, (Negative, Pointwise, Over, Counted, Across, Matching, Nonfinite, Often, Not)):
        return (tree.of,)
    return (tree.of,) if isinstance(tree, Flag) else ()
