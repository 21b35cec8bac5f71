"""A value for each layer, module or rank, and the same functions of such values as of those of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scalescope_server.rules.keys import Keys, merged
from scalescope_server.rules.signals.rows import NOTHING, Rows
from scalescope_server.rules.signals.signal import NO_EVIDENCE, Column, Evidence, Moving, Now, Signal, Span
from scalescope_server.rules.signals.told import NumberSignal


class Each(Moving):
    """A number or a truth for each layer, module or rank that has one.

    ``rows``: what it was over the last stretch, or at the last tick, which is a stretch of one; until it is settled.
    """

    __slots__ = ("rows",)

    def __init__(self) -> None:
        super().__init__()
        self.rows = NOTHING

    def evidence(self, index: int | None) -> Evidence:
        return NO_EVIDENCE

    def settle(self) -> None:
        self.rows = self.rows.last()

    def rest(self) -> None:
        """Nothing was told, and nothing moves it."""
        self.rows = self.rows.last()
        self.fresh = self.moved = False

    def set(self, rows: Rows) -> None:
        """Move on by ``rows``."""
        self.rows = rows
        self.moved = len(rows.at) > 1
        self.fresh = bool(rows.fresh.any())


Any_: TypeAlias = Signal | Each


class _Held(NamedTuple):
    """An operand at some updates: of each, [k, n], or of the run, [k, 1]. ``sure``: it is known and what it says."""

    values: NDArray[Any]
    known: NDArray[np.bool_]
    sure: NDArray[np.bool_]


class Together:
    """Operands, of which some have a value for each, over the same ``length`` updates.

    ``at``: the updates at which any may have moved, intp[k]; ``fresh``: bool[k], at which of them any was told.
    """

    def __init__(self, operands: Sequence[Any_], length: int) -> None:
        self._operands = [operand if isinstance(operand, Each) else _column(operand) for operand in operands]
        moved, fresh = np.zeros(length, np.bool_), np.zeros(length, np.bool_)
        for operand, seen in zip(operands, self._operands, strict=True):
            if not isinstance(operand, NumberSignal):
                _note(seen, moved, fresh)
        self.at = moved.nonzero()[0]
        self.fresh = fresh[self.at]

    def keys(self) -> list[Keys]:
        """Those of operands that have any."""
        return [operand.rows.keys for operand in self._operands if isinstance(operand, Each)]

    def held(self, keys: Keys) -> list[_Held]:
        """Each operand at ``at``."""
        return [self._held(operand, keys) for operand in self._operands]

    def _held(self, operand: Each | Column, keys: Keys) -> _Held:
        if isinstance(operand, Each):
            rows = operand.rows.under(keys)
            held = rows.holding(self.at)
            return _Held(rows.values[held], rows.known[held], rows.known[held])
        known = operand.known[self.at, None]
        return _Held(operand.values[self.at, None], known, known & (operand.bound[self.at, None] == 0))


def _column(signal: Signal) -> Column:
    """What it was over the last stretch; after a tick, a column of one."""
    if signal.column is not None:
        return signal.column
    value, known = signal.value, np.array([signal.value is not None])
    values = np.array([0.0 if value is None else value], np.float64)
    return Column(values, known, np.array([signal.fresh]), np.array([signal.bound], np.int8))


def _note(operand: Each | Column, moved: NDArray[np.bool_], fresh: NDArray[np.bool_]) -> None:
    """Mark where it may have moved, and where it was told."""
    if isinstance(operand, Each):
        rows = operand.rows
        moved[rows.at[1:]] = True
        fresh[rows.at[rows.fresh]] = True
        return
    # What it was before is not asked: where it is the same, what rests on it comes out the same.
    moved[0] = True
    for part in (operand.values, operand.known, operand.bound):
        moved[1:] |= part[1:] != part[:-1]
    moved |= operand.fresh
    fresh |= operand.fresh


class Combined(Each):
    """What is worked out of several operands wherever one of them moves."""

    __slots__ = ("_operands",)

    def __init__(self, *operands: Any_) -> None:
        super().__init__()
        self._operands = operands

    def tick(self, now: Now) -> None:
        if any(operand.fresh or operand.moved for operand in self._operands):
            self._move(1)
        else:
            self.rest()

    def over(self, span: Span) -> None:
        self._move(len(span))

    def _move(self, length: int) -> None:
        self.set(self.rows.then(self._worked_out(Together(self._operands, length))))

    def _worked_out(self, together: Together) -> Rows:
        """At each moment of ``together``."""
        raise NotImplementedError


class AppliedEach(Combined):
    """A function of operands: known for what all of those have that have a value for each.

    A value of the run as a whole is everyone's, where it is known and is what it says.
    """

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., NDArray[Any]], *operands: Any_) -> None:
        super().__init__(*operands)
        self._function = function

    def _worked_out(self, together: Together) -> Rows:
        keys = together.keys()[0]
        held = together.held(keys)
        shape = (len(together.at), len(keys))
        with np.errstate(all="ignore"):
            values = self._function(*(operand.values for operand in held))
        known = np.logical_and.reduce(np.broadcast_arrays(*(operand.sure for operand in held)))
        values, known = np.broadcast_to(values, shape), np.broadcast_to(known, shape)
        return Rows(keys, together.at, values.astype(np.float64), known, together.fresh)


class JoinedEach(Combined):
    """``and``, or ``or``, for each that any of the operands knows of."""

    __slots__ = ("_settles",)

    def __init__(self, settles: bool, *operands: Any_) -> None:
        super().__init__(*operands)
        self._settles = settles

    def _worked_out(self, together: Together) -> Rows:
        keys = reduce(merged, together.keys())
        held, shape = together.held(keys), (len(together.at), len(keys))
        settled, known, heard_of = np.zeros(shape, np.bool_), np.ones(shape, np.bool_), np.zeros(shape, np.bool_)
        for operand, mine in zip(self._operands, held, strict=True):
            settled |= mine.known & ((mine.values != 0.0) == self._settles)
            known &= mine.known
            if isinstance(operand, Each):
                heard_of |= mine.known
        values = (settled == self._settles).astype(np.float64)
        return Rows(keys, together.at, values, (settled | known) & heard_of, together.fresh)
