"""The same functions where there is a value for each layer, module or rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from scalescope_server.rules.signals.conditions import joined
from scalescope_server.rules.signals.signal import Each, Key, Now, Signal

Any_: TypeAlias = Signal | Each


class AppliedEach(Each):
    """A function of operands, of which some have a value for each: known for what all of those have.

    A value of the run as a whole is everyone's, where it is known and is what it says.
    """

    __slots__ = ("_function", "_operands")

    def __init__(self, function: Callable[..., float], *operands: Any_) -> None:
        super().__init__()
        self._function = function
        self._operands = operands

    def tick(self, now: Now) -> None:
        self.fresh = any(operand.fresh for operand in self._operands)
        self.moved = any(operand.moved for operand in self._operands)
        if self.moved:
            self.value = self._applied()

    def _applied(self) -> dict[Key, float]:
        everyones = [operand for operand in self._operands if isinstance(operand, Signal)]
        if any(operand.value is None or operand.bound for operand in everyones):
            return {}
        return {key: self._function(*(_of(operand, key) for operand in self._operands)) for key in self._keys()}

    def _keys(self) -> list[Key]:
        first, *others = [operand.value for operand in self._operands if isinstance(operand, Each)]
        return [key for key in first if all(key in other for other in others)]


class JoinedEach(Each):
    """``and``, or ``or``, for each that any of the operands knows of."""

    __slots__ = ("_operands", "_settles")

    def __init__(self, settles: bool, *operands: Any_) -> None:
        super().__init__()
        self._settles = settles
        self._operands = operands

    def tick(self, now: Now) -> None:
        self.fresh = any(operand.fresh for operand in self._operands)
        self.moved = any(operand.moved for operand in self._operands)
        if not self.moved:
            return
        keys = {key: None for operand in self._operands if isinstance(operand, Each) for key in operand.value}
        found = ((key, joined(self._settles, (_of(operand, key) for operand in self._operands))) for key in keys)
        self.value = {key: value for key, value in found if value is not None}


def _of(operand: Any_, key: Key) -> float | None:
    return operand.value if isinstance(operand, Signal) else operand.value.get(key)
