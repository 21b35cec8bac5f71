"""From the trees of rules to signals, each made once however many rules ask for it."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np

from scalescope_server.rules.dependence import needs
from scalescope_server.rules.expression import (
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
from scalescope_server.rules.signals.across import AcrossSignal, MatchingSignal
from scalescope_server.rules.signals.conditions import Compared, Denied, Joined
from scalescope_server.rules.signals.each import AppliedEach, Each, JoinedEach
from scalescope_server.rules.signals.pointwise import (
    ARITHMETIC,
    COMPARISONS,
    FLAG,
    NEGATIVE,
    NONFINITE,
    POINTWISE,
    Applicable,
    Applied,
    Truth,
)
from scalescope_server.rules.signals.signal import Signal
from scalescope_server.rules.signals.told import (
    FindingSignal,
    NoUpdateSignal,
    NumberSignal,
    RunIsSignal,
    SeriesSignal,
)
from scalescope_server.rules.signals.told_each import DisagreementSignal, MeasuredSignal, RanksSignal
from scalescope_server.rules.signals.windowed import Reach, Ruler, Windowed
from scalescope_server.rules.signals.windowed_each import WindowedEach
from scalescope_server.rules.windows.catalogue import COUNTED, OVER, Function

Tree = Value | Condition


class Program:
    """The signals of all trees that were asked for, each after what it rests on: ``order``.

    ``timed``: those that time alone may change, in the same order.
    """

    def __init__(self) -> None:
        self._made: dict[Tree | Duration, Any] = {}
        self.order: list[Signal | Each | Reach] = []
        self.timed: list[Signal | Each] = []
        self._kept: set[int] = set()

    def signal(self, tree: Tree) -> Signal:
        """That of a tree of the run as a whole.

        Raises:
            TypeError: if it has a value for each layer, module or rank. Checking refuses such a sentence.
        """
        made = self.any(tree)
        if not isinstance(made, Signal):
            raise TypeError(
                f"{type(tree).__name__} is of each; a rule is of the run: use max by layer(...) or the like"
            )
        return made

    def each(self, tree: Tree) -> Each:
        """That of a tree with a value for each layer, module or rank."""
        made = self.any(tree)
        if not isinstance(made, Each):
            raise TypeError(f"{type(tree).__name__} is of the run, and has nothing by layer, module or rank")
        return made

    def any(self, tree: Tree) -> Signal | Each:
        made: Signal | Each | None = self._made.get(tree)
        if made is None:
            made = self._made[tree] = _make(tree, self)
            if id(made) not in self._kept:  # Some trees say what another one says, and share its signal.
                self._keep(tree, made)
        return made

    def reach(self, window: Duration) -> Reach:
        made: Reach | None = self._made.get(window)
        if made is None:
            made = self._made[window] = Reach(Ruler(window))
            self.order.append(made)
        return made

    def _keep(self, tree: Tree, made: Signal | Each) -> None:
        self._kept.add(id(made))
        self.order.append(made)
        if needs(tree).pulses:
            self.timed.append(made)


@singledispatch
def _make(tree: Tree, _: Program) -> Signal | Each:
    return _leaf(tree)


@_make.register
def _(tree: Negative, program: Program) -> Signal | Each:
    return _applied(NEGATIVE, program, tree.of)


@_make.register
def _(tree: Pointwise, program: Program) -> Signal | Each:
    return _applied(POINTWISE[tree.function], program, tree.of)


@_make.register
def _(tree: Arithmetic, program: Program) -> Signal | Each:
    return _applied(ARITHMETIC[tree.sign], program, tree.left, tree.right)


@_make.register
def _(tree: Over, program: Program) -> Signal | Each:
    return _windowed(OVER[tree.function].of(tree.share), program, tree.of, tree.window)


@_make.register
def _(tree: Counted, program: Program) -> Signal | Each:
    return _windowed(COUNTED[tree.function], program, tree.of, tree.window)


@_make.register
def _(tree: Often, program: Program) -> Signal | Each:
    count = Counted("count", tree.of, Updates(tree.updates))
    return program.any(Comparison(">=", count, Number(float(tree.times))))


@_make.register
def _(tree: Across, program: Program) -> Signal:
    return AcrossSignal(tree.function, program.each(tree.of))


@_make.register
def _(tree: Matching, program: Program) -> Signal:
    return MatchingSignal(program.each(tree.of))


@_make.register
def _(tree: Comparison, program: Program) -> Signal | Each:
    left, right = program.any(tree.left), program.any(tree.right)
    if isinstance(left, Signal) and isinstance(right, Signal):
        return Compared(tree.sign, left, right)
    return AppliedEach(COMPARISONS[tree.sign].many, left, right)


@_make.register
def _(tree: Nonfinite, program: Program) -> Signal | Each:
    return _truth(NONFINITE, program, tree.of)


@_make.register
def _(tree: Flag, program: Program) -> Signal | Each:
    return _truth(FLAG, program, tree.of)


@_make.register
def _(tree: RankDisagreement, program: Program) -> Signal:
    ranks = program.each(OfRanks(tree.series))
    return DisagreementSignal(ranks)


@_make.register
def _(tree: Not, program: Program) -> Signal | Each:
    of = program.any(tree.of)
    return Denied(of) if isinstance(of, Signal) else AppliedEach(np.logical_not, of)


@_make.register
def _(tree: And, program: Program) -> Signal | Each:
    return _joined(False, program, tree.of)


@_make.register
def _(tree: Or, program: Program) -> Signal | Each:
    return _joined(True, program, tree.of)


def _applied(function: Applicable, program: Program, *trees: Tree) -> Signal | Each:
    operands = [program.any(tree) for tree in trees]
    of_run = [operand for operand in operands if isinstance(operand, Signal)]
    return Applied(function, *of_run) if len(of_run) == len(operands) else AppliedEach(function.many, *operands)


def _truth(function: Applicable, program: Program, tree: Tree) -> Signal | Each:
    of = program.any(tree)
    return Truth(function, of) if isinstance(of, Signal) else AppliedEach(function.many, of)


def _joined(settles: bool, program: Program, trees: tuple[Condition, ...]) -> Signal | Each:
    operands = [program.any(tree) for tree in trees]
    of_run = [operand for operand in operands if isinstance(operand, Signal)]
    return Joined(settles, *of_run) if len(of_run) == len(operands) else JoinedEach(settles, *operands)


def _windowed(function: Function, program: Program, tree: Tree, window: Duration) -> Signal | Each:
    of, reach = program.any(tree), program.reach(window)
    if isinstance(of, Signal):
        return Windowed(of, function.window(), reach, early=function.early, finite=function.finite)
    return WindowedEach(of, function.columns, reach, early=function.early, finite=function.finite)


@singledispatch
def _leaf(tree: Tree) -> Signal | Each:
    raise TypeError(f"expected a part of a rule, got {type(tree).__name__}")


@_leaf.register
def _(tree: Number) -> Signal:
    return NumberSignal(tree.value)


@_leaf.register
def _(tree: Series) -> Signal:
    return SeriesSignal(tree.name)


@_leaf.register
def _(tree: Measured) -> Each:
    return MeasuredSignal(tree.measure, tree.names, tree.without)


@_leaf.register
def _(tree: OfRanks) -> Each:
    return RanksSignal(tree.series)


@_leaf.register
def _(tree: Finding) -> Signal:
    return FindingSignal(tree.code)


@_leaf.register
def _(tree: NoUpdate) -> Signal:
    return NoUpdateSignal(tree.within.seconds)


@_leaf.register
def _(tree: RunIs) -> Signal:
    return RunIsSignal(tree.state)
