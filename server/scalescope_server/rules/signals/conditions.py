"""What is true, false or not known: comparisons, and what joins conditions."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from scalescope_server.rules.expression import ComparisonSign
from scalescope_server.rules.signals.pointwise import COMPARISONS
from scalescope_server.rules.signals.signal import (
    NO_EVIDENCE,
    Column,
    Evidence,
    Now,
    Signal,
    Span,
    columns_of,
    unbounded,
)
from scalescope_server.rules.signals.told import NumberSignal


class Compared(Signal):
    """A comparison. A value whose window has not filled decides it only where what is missing cannot change it:
    six changes in half a window are six or more.
    """

    __slots__ = ("_left", "_many", "_one", "_orders", "_right")

    def __init__(self, sign: ComparisonSign, left: Signal, right: Signal) -> None:
        super().__init__()
        self._one, self._many = COMPARISONS[sign]
        self._orders = sign not in ("==", "!=")
        self._left, self._right = left, right

    def tick(self, now: Now) -> None:
        left, right = self._left, self._right
        self.fresh = left.fresh or right.fresh
        self.moved = left.moved or right.moved
        if not self.moved:
            return
        if left.value is None or right.value is None:
            self.value = None
            return
        value = self._one(left.value, right.value)
        if left.bound or right.bound:
            self.value = value if self._is_decided(value, left, right) else None
        else:
            self.value = value

    def _is_decided(self, value: float, left: Signal, right: Signal) -> bool:
        """Whether it stays so however far the two may still go."""
        one_s, other_s = _ends(left), _ends(right)
        return self._orders and all(self._one(one, other) == value for one in one_s for other in other_s)

    def stretch(self, span: Span) -> Column:
        left, right = columns_of((self._left, self._right))
        values = self._many(left.values, right.values)
        known = left.known & right.known
        if left.bound.any() or right.bound.any():
            known = known & self._are_decided(values, left, right)
        return Column(values, known, left.fresh | right.fresh, unbounded(len(span)))

    def _are_decided(self, values: NDArray[np.bool_], left: Column, right: Column) -> NDArray[np.bool_]:
        exact: NDArray[np.bool_] = (left.bound == 0) & (right.bound == 0)
        if not self._orders:
            return exact
        one, other = _farthest(left), _farthest(right)
        ends = ((one, right.values), (left.values, other), (one, other))
        stays: NDArray[np.bool_] = np.logical_and.reduce([self._many(*end) == values for end in ends])
        return exact | stays

    def evidence(self, index: int | None) -> Evidence:
        """Of the side that is no plain number, the left one first; the culprit of either."""
        left, right = self._left.evidence(index), self._right.evidence(index)
        value = right[0] if isinstance(self._left, NumberSignal) else left[0]
        return value, right[1] if left[1] is None else left[1]


def _ends(signal: Signal) -> tuple[float, ...]:
    """Where its value is, and where it may still go."""
    assert signal.value is not None
    return (signal.value, math.copysign(math.inf, signal.bound)) if signal.bound else (signal.value,)


def _farthest(column: Column) -> NDArray[np.float64]:
    """Where it may still go: where it is, if that is what it says."""
    return np.where(column.bound == 0, column.values, np.where(column.bound > 0, np.inf, -np.inf))


class Denied(Signal):
    """Not."""

    __slots__ = ("_of",)

    def __init__(self, of: Signal) -> None:
        super().__init__()
        self._of = of

    def tick(self, now: Now) -> None:
        of = self._of
        self.fresh, self.moved = of.fresh, of.moved
        self.value = None if of.value is None else not of.value

    def stretch(self, span: Span) -> Column:
        (of,) = columns_of((self._of,))
        return Column(np.logical_not(of.values), of.known, of.fresh, of.bound)

    def evidence(self, index: int | None) -> Evidence:
        return self._of.evidence(index)[0], None


class Joined(Signal):
    """``and``, or ``or``: known as soon as one of them settles it (Kleene's logic).

    ``settles``: the truth that does, False of ``and``.
    """

    __slots__ = ("_operands", "_settles")

    def __init__(self, settles: bool, *operands: Signal) -> None:
        super().__init__()
        self._settles = settles
        self._operands = operands

    def tick(self, now: Now) -> None:
        self.fresh = self.moved = False
        for operand in self._operands:
            self.fresh = self.fresh or operand.fresh
            self.moved = self.moved or operand.moved
        if self.moved:
            self.value = joined(self._settles, (operand.value for operand in self._operands))

    def stretch(self, span: Span) -> Column:
        columns = columns_of(self._operands)
        settled = np.logical_or.reduce([column.known & (column.values == self._settles) for column in columns])
        known = settled | np.logical_and.reduce([column.known for column in columns])
        fresh = np.logical_or.reduce([column.fresh for column in columns])
        return Column(settled == self._settles, known, fresh, unbounded(len(span)))

    def evidence(self, index: int | None) -> Evidence:
        """Of those that hold: the first value, and the first culprit."""
        held = [operand.evidence(index) for operand in self._operands if operand.at(index)] or [NO_EVIDENCE]
        return (
            next((value for value, _ in held if value is not None), None),
            next((culprit for _, culprit in held if culprit is not None), None),
        )


def joined(settles: bool, values: Iterable[float | None]) -> bool | None:
    """``or`` of the values where ``settles``, ``and`` where not; None among them is not known."""
    known = True
    for value in values:
        if value is None:
            known = False
        elif bool(value) is settles:
            return settles
    return not settles if known else None
