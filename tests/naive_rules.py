"""What rules say, written anew and slowly: at each update all of its past is looked at, by the definitions.

The reference for the evaluator, of which it shares nothing but the tree, the limit of how long a value holds and the
words for what a function says early.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from scalescope_server.rules import expression as tree
from scalescope_server.rules.signals.signal import HOLD_UPDATES
from scalescope_server.rules.ticks import Tick

EARLY = {"last": 0, "min": -1, "max": 1, "sum": 1, "changes": 1, "reversals": 1, "count": 1}


@dataclass(frozen=True)
class Said:
    """Of one update: a value or a dict of them, whether any of it is told anew, and which way it may still go."""

    value: Any
    told: bool
    bound: int = 0


Course = list[Said]


class Naive:
    """``places``: the updates' numbers, by their steps. ``most``: updates of a window."""

    def __init__(self, ticks: Sequence[Tick], most: int = tree.MOST_UPDATES) -> None:
        self.ticks = ticks
        self.most = most
        self.places: list[int] = []
        for index, tick in enumerate(ticks):
            before = ticks[index - 1].step if index else tick.step - 1
            self.places.append((self.places[-1] if index else 0) + max(1, tick.step - before))

    def course(self, part: Any) -> Course:
        """What ``part`` says at each update."""
        leaf = self._leaf(part)
        if leaf is not None:
            return leaf
        if isinstance(part, (tree.Over, tree.Counted, tree.Often)):
            return self._windowed(part)
        if isinstance(part, (tree.And, tree.Or)):
            return _joined(isinstance(part, tree.Or), [self.course(each) for each in part.of])
        if isinstance(part, (tree.Across, tree.Matching)):
            return [Said(_across(part, said.value), said.told) for said in self.course(part.of)]
        if isinstance(part, tree.Comparison):
            return _compared(part.sign, self.course(part.left), self.course(part.right))
        if isinstance(part, tree.Arithmetic):
            return _pointwise(_ARITHMETIC[part.sign], self.course(part.left), self.course(part.right))
        function = abs if isinstance(part, tree.Pointwise) and part.function == "abs" else _POINTWISE[type(part)]
        return _pointwise(function, self.course(part.of))

    def _leaf(self, part: Any) -> Course | None:
        told: dict[type, Callable[[Tick], Any]] = {
            tree.Series: lambda tick: tick.values.get(part.name),
            tree.Measured: lambda tick: _named(part, tick),
            tree.OfRanks: lambda tick: _of_ranks(part.series, tick),
        }
        always: dict[type, Callable[[Tick], Any]] = {
            tree.Finding: lambda tick: part.code in tick.findings,
            tree.NoUpdate: lambda tick: False,
            tree.RunIs: lambda tick: part.state == "running",
        }
        if isinstance(part, tree.RankDisagreement):
            return self._disagreement(part.series)
        if isinstance(part, tree.Number):
            return [Said(part.value, told=False) for _ in self.ticks]
        if type(part) in told:
            return self._held(
                [told[type(part)](tick) for tick in self.ticks], None if type(part) is tree.Series else {}
            )
        return [Said(always[type(part)](tick), told=True) for tick in self.ticks] if type(part) in always else None

    def _windowed(self, part: Any) -> Course:
        of = self.course(part.of)
        if isinstance(part, tree.Over):
            return self._over(part.function, of, part.window, part.share)
        if isinstance(part, tree.Counted):
            return self._over("count" if part.function == "count" else "share", of, part.window, None)
        counted = self._over("count", of, tree.Updates(part.updates), None)
        return _compared(">=", counted, [Said(part.times, told=False)] * len(counted))

    def _held(self, told: Sequence[Any], none: Any = None) -> Course:
        course: Course = []
        for index, place in enumerate(self.places):
            known = [at for at in range(index + 1) if told[at] is not None and place - self.places[at] < HOLD_UPDATES]
            course.append(Said(told[known[-1]] if known else none, told[index] is not None))
        return course

    def _disagreement(self, series: str) -> Course:
        apart: list[bool | None] = []
        for tick in self.ticks:
            told = _of_ranks(series, tick) or {}
            apart.append(len({repr(float(value)) for value in told.values()}) > 1 if len(told) > 1 else None)
        return self._held(apart)

    def _over(self, name: str, of: Course, window: tree.Duration, share: float | None) -> Course:
        if of and isinstance(of[0].value, dict):
            return self._over_each(name, of, window, share)
        told = [said.told and said.value is not None and not said.bound for said in of]
        found: list[Said] = []
        for index in range(len(self.ticks)):
            newest = next((at for at in range(index, -1, -1) if told[at]), None)
            if newest is None:
                found.append(Said(None, told=False))
                continue
            inside = self._inside(newest, window)
            entries = [at for at in inside if told[at] and (name in _AS_IT_IS or math.isfinite(of[at].value))]
            value = self._function(name, entries, of, share)
            bound = 0
            if not self._is_full(newest, inside, window):
                early = EARLY.get(name)
                value, bound = (None, 0) if early is None else (value, early)
            now = newest == index and value is not None
            if entries and entries[-1] not in self._inside(index, window):
                value = None
            found.append(Said(value, now, bound))
        return found

    def _over_each(self, name: str, of: Course, window: tree.Duration, share: float | None) -> Course:
        keys = {key for said in of for key in said.value}
        found = []
        alone = {}
        for key in keys:
            of_key = [Said(said.value.get(key), said.told and key in said.value) for said in of]
            alone[key] = self._over(name, of_key, window, share)
        for index in range(len(self.ticks)):
            newest = next((at for at in range(index, -1, -1) if of[at].told), None)
            value: dict[Any, Any] = {}
            if newest is not None and newest in self._inside(index, window):
                at_newest = {key: alone[key][newest] for key in of[newest].value}
                value = {
                    key: said.value for key, said in at_newest.items() if said.value is not None and not said.bound
                }
            found.append(Said(value, of[index].told))
        return found

    def _inside(self, index: int, window: tree.Duration) -> list[int]:
        keys = self._keys(window)
        gone = keys[index - self.most] if index >= self.most else -math.inf
        return [at for at in range(index + 1) if keys[at] > max(keys[index] - _width(window), gone)]

    def _is_full(self, index: int, inside: Sequence[int], window: tree.Duration) -> bool:
        keys = self._keys(window)
        reached = keys[index] - keys[inside[0]] if inside else 0.0
        return 2 * (reached + isinstance(window, tree.Updates)) >= _width(window) or len(inside) >= self.most

    def _keys(self, window: tree.Duration) -> Sequence[float]:
        return self.places if isinstance(window, tree.Updates) else [tick.at for tick in self.ticks]

    def _function(self, name: str, entries: Sequence[int], of: Course, share: float | None) -> float | None:
        values = [float(of[at].value) for at in entries]
        if name == "rate":
            passed = self.ticks[entries[-1]].at - self.ticks[entries[0]].at if entries else 0.0
            return float(sum(map(Fraction, values[1:]), Fraction())) / passed if passed > 0 else None
        return _FUNCTIONS[name](values) if share is None else _quantile(values, share)


def _width(window: tree.Duration) -> float:
    return window.count if isinstance(window, tree.Updates) else window.seconds


def _named(part: tree.Measured, tick: Tick) -> dict[str, float] | None:
    told = tick.layers.get(part.measure)
    if told is None:
        return None
    left_out = {name for name in told if part.without and fnmatchcase(name, part.without)}
    return {name: value for name, value in told.items() if fnmatchcase(name, part.names) and name not in left_out}


def _of_ranks(series: str, tick: Tick) -> dict[int, float] | None:
    return {rank: value for rank, value in tick.ranks.get(series, {}).items() if value is not None} or None


def _pointwise(function: Callable[..., Any], *courses: Course) -> Course:
    return [_applied(function, said) for said in zip(*courses, strict=True)]


def _applied(function: Callable[..., Any], operands: Sequence[Said]) -> Said:
    told = any(said.told for said in operands)
    of_each = [said.value for said in operands if isinstance(said.value, dict)]
    of_run = [said for said in operands if not isinstance(said.value, dict)]
    known = all(said.value is not None and not said.bound for said in of_run)
    if not of_each:
        return Said(function(*(said.value for said in operands)) if known else None, told)
    keys = [key for key in of_each[0] if all(key in values for values in of_each)] if known else []
    return Said({key: function(*(_for(said.value, key) for said in operands)) for key in keys}, told)


def _for(value: Any, key: Any) -> Any:
    return value.get(key) if isinstance(value, dict) else value


def _compared(sign: str, left: Course, right: Course) -> Course:
    found = []
    for operands in zip(left, right, strict=True):
        one, other = operands
        if isinstance(one.value, dict) or isinstance(other.value, dict):
            found.append(_applied(_COMPARE[sign], operands))
            continue
        told = one.told or other.told
        value = None
        if one.value is not None and other.value is not None:
            # It stands if it stands wherever the two may still go.
            ends = {_COMPARE[sign](a, b) for a in _may_be(one) for b in _may_be(other)}
            value = ends.pop() if len(ends) == 1 else None
            if sign in ("==", "!=") and (one.bound or other.bound):
                value = None
        found.append(Said(value, told))
    return found


def _may_be(said: Said) -> list[float]:
    return [said.value, *([math.copysign(math.inf, said.bound)] if said.bound else [])]


def _joined(is_or: bool, courses: Sequence[Course]) -> Course:
    found = []
    for operands in zip(*courses, strict=True):
        told = any(said.told for said in operands)
        of_each = [said.value for said in operands if isinstance(said.value, dict)]
        if not of_each:
            found.append(Said(_kleene(is_or, [said.value for said in operands]), told))
            continue
        keys = dict.fromkeys(key for values in of_each for key in values)
        joined = {key: _kleene(is_or, [_for(said.value, key) for said in operands]) for key in keys}
        found.append(Said({key: value for key, value in joined.items() if value is not None}, told))
    return found


def _kleene(is_or: bool, values: Sequence[bool | None]) -> bool | None:
    if any(value is not None and bool(value) == is_or for value in values):
        return is_or
    return None if None in values else not is_or


def _across(part: Any, values: dict[Any, float]) -> float | None:
    if isinstance(part, tree.Matching):
        return float(sum(map(bool, values.values()))) if values else None
    numbers = [value for value in values.values() if not math.isnan(value)]
    if not numbers:
        return None
    across: dict[str, Callable[[list[float]], float]] = {
        "max": max, "min": min, "sum": _sum, "median": statistics.median, "mean": lambda them: _sum(them) / len(them),
    }  # fmt: skip
    return across[part.function](numbers)


def _sum(values: Sequence[float]) -> float:
    """The nearest float, where there is one."""
    return float(sum(map(Fraction, values))) if all(map(math.isfinite, values)) else sum(values)


def _log2(value: float) -> float:
    with np.errstate(all="ignore"):
        return math.log2(value) if value > 0 else float(np.log2(value))


def _divided(left: float, right: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float64(left) / np.float64(right))


def _quantile(values: Sequence[float], share: float) -> float | None:
    ordered = sorted(values)
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low if low == high else low * (1 - place % 1) + high * (place % 1)


def _zscore(values: Sequence[float]) -> float | None:
    *before, newest = map(Fraction, values)
    if len(before) < 2:
        return None
    mean = sum(before, Fraction()) / len(before)
    variance = sum(((value - mean) ** 2 for value in before), Fraction()) / len(before)
    if variance == 0:
        return 0.0 if newest == mean else None
    return math.copysign(math.sqrt((newest - mean) ** 2 / variance), newest - mean)


def _reversals(values: Sequence[float]) -> float:
    ways = [after > before for before, after in pairwise(values) if after != before]
    return float(sum(one != other for one, other in pairwise(ways)))


def _changes(values: Sequence[float]) -> float:
    return float(sum(one != other for one, other in pairwise(values)))


_AS_IT_IS = ("last", "count", "share")
_ARITHMETIC = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": _divided}
_POINTWISE: dict[type, Callable[[Any], Any]] = {
    tree.Negative: lambda x: -x,
    tree.Nonfinite: lambda x: not math.isfinite(x),
    tree.Flag: lambda x: x != 0,
    tree.Not: lambda x: not x,
    tree.Pointwise: _log2,
}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
}  # fmt: skip


def _if_any(function: Callable[..., float | None]) -> Callable[[Sequence[float]], float | None]:
    return lambda values: function(values) if values else None


_FUNCTIONS: dict[str, Callable[[Sequence[float]], float | None]] = {
    name: _if_any(function)
    for name, function in dict[str, Callable[..., float | None]](
        {
            "last": lambda values: values[-1],
            "min": min,
            "max": max,
            "sum": lambda values: float(sum(map(Fraction, values), Fraction())),
            "mean": lambda values: float(sum(map(Fraction, values), Fraction()) / len(values)),
            "median": lambda values: _quantile(values, 0.5),
            "change": lambda values: values[-1] - values[0] if len(values) > 1 else None,
            "changes": _changes,
            "reversals": _reversals,
            "zscore": _zscore,
            "count": sum,
            "share": lambda values: sum(values) / len(values),
        }
    ).items()
}
