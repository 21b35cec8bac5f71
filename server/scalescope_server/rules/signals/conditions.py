"""What is true, false or not known: comparisons, and what joins conditions."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

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

# What has to be added to the left, to the right, for the truth to stay what it is once it is true.
_TRUE_STAYS = {"<": -1, "<=": -1, ">": 1, ">=": 1}


class Compared(Signal):
    """A comparison. A value whose window has not filled decides it only where what is missing cannot change it:
    six changes in half a window are six or more.
    """

    __slots__ = ("_left", "_many", "_one", "_right", "_stays")

    def __init__(self, sign: ComparisonSign, left: Signal, right: Signal) -> None:
        super().__init__()
        self._one, self._many = COMPARISONS[sign]
        self._stays = _TRUE_STAYS.get(sign, 0)
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
            self.value = value if self._decides(value, left.bound, right.bound) else None
        else:
            self.value = value

    def _decides(self, value: float, left: int, right: int) -> bool:
        """Whether it stays so when what is missing comes."""
        grows = self._stays if value else -self._stays
        return grows != 0 and left * grows >= 0 and right * grows <= 0

    def stretch(self, span: Span) -> Column:
        left, right = columns_of((self._left, self._right))
        values = self._many(left.values, right.values)
        grows = np.where(values, self._stays, -self._stays)
        decided = (grows != 0) & (left.bound * grows >= 0) & (right.bound * grows <= 0)
        exact = (left.bound == 0) & (right.bound == 0)
        known = left.known & right.known & (exact | decided)
        return Column(values, known, left.fresh | right.fresh, unbounded(len(span)))

    def evidence(self, index: int | None) -> Evidence:
        """Of the side that is no plain number, the left one first; the culprit of either."""
        left, right = self._left.evidence(index), self._right.evidence(index)
        value = right[0] if isinstance(self._left, NumberSignal) else left[0]
        return value, right[1] if left[1] is None else left[1]


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
