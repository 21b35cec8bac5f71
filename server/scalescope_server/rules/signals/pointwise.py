"""What is worked out of one update alone: arithmetic, and truths of single values."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalescope_server.rules.expression import ArithmeticSign, ComparisonSign, PointwiseName
from scalescope_server.rules.signals.signal import Column, Evidence, Now, Signal, Span, columns_of, unbounded


class Applicable(NamedTuple):
    """A function of numbers and the same of arrays: they answer alike, to the last bit."""

    one: Callable[..., float]
    many: Callable[..., NDArray[Any]]


def log2(value: float) -> float:
    """-inf of 0, NaN of what is negative."""
    if value > 0.0:
        return math.log2(value)
    return -math.inf if value == 0.0 else math.nan


def divided(left: float, right: float) -> float:
    """As floats divide: by zero it is infinite or NaN."""
    if right != 0.0:
        return left / right
    if left == 0.0 or left != left:
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def _log2_of_many(values: NDArray[np.float64]) -> NDArray[np.float64]:
    # numpy's logarithm differs from Python's in the last bit, and a rule must not hold in one way alone.
    logarithms = np.array([log2(value) for value in values.ravel().tolist()], np.float64)
    return logarithms.reshape(values.shape)


ARITHMETIC: dict[ArithmeticSign, Applicable] = {
    "+": Applicable(operator.add, np.add),
    "-": Applicable(operator.sub, np.subtract),
    "*": Applicable(operator.mul, np.multiply),
    "/": Applicable(divided, np.divide),
}
POINTWISE: dict[PointwiseName, Applicable] = {
    "abs": Applicable(abs, np.abs),
    "log2": Applicable(log2, _log2_of_many),
}
COMPARISONS: dict[ComparisonSign, Applicable] = {
    "<": Applicable(operator.lt, np.less),
    "<=": Applicable(operator.le, np.less_equal),
    ">": Applicable(operator.gt, np.greater),
    ">=": Applicable(operator.ge, np.greater_equal),
    "==": Applicable(operator.eq, np.equal),
    "!=": Applicable(operator.ne, np.not_equal),
}
NEGATIVE = Applicable(operator.neg, np.negative)
NONFINITE = Applicable(lambda value: not math.isfinite(value), lambda values: ~np.isfinite(values))
FLAG = Applicable(bool, lambda values: values != 0.0)


class Applied(Signal):
    """A function of signals; known where all of them are, and are what they say."""

    __slots__ = ("_function", "_operands")

    def __init__(self, function: Applicable, *operands: Signal) -> None:
        super().__init__()
        self._function = function
        self._operands = operands

    def tick(self, now: Now) -> None:
        self.fresh = self.moved = False
        values = []
        for operand in self._operands:
            self.fresh = self.fresh or operand.fresh
            self.moved = self.moved or operand.moved
            if operand.value is not None and not operand.bound:
                values.append(operand.value)
        if self.moved:
            known = len(values) == len(self._operands)
            self.value = self._function.one(*values) if known else None

    def stretch(self, span: Span) -> Column:
        columns = columns_of(self._operands)
        with np.errstate(all="ignore"):
            values = self._function.many(*(column.values for column in columns))
        known = np.logical_and.reduce([column.known & (column.bound == 0) for column in columns])
        fresh = np.logical_or.reduce([column.fresh for column in columns])
        return Column(values, known, fresh, unbounded(len(span)))

    def evidence(self, index: int | None) -> Evidence:
        culprits = (operand.evidence(index)[1] for operand in self._operands)
        return self.at(index), next((culprit for culprit in culprits if culprit is not None), None)


class Truth(Applied):
    """A truth of one value, which is its evidence."""

    __slots__ = ()

    def evidence(self, index: int | None) -> Evidence:
        return self._operands[0].evidence(index)
