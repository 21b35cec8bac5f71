"""In which unit the value is written that an alert has: that in which its rule compares it."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from scalescope_server.rules.errors import SentenceError
from scalescope_server.rules.expression import And, Comparison, Condition, Finding, Not, NoUpdate, Number, Or, RunIs
from scalescope_server.rules.parsing import parse

# "" a plain number, "%" a share of 1, "ms" milliseconds, "s" seconds.
SeenUnit = Literal["", "%", "ms", "s"]


@lru_cache(maxsize=2048)
def unit_seen(when: str) -> SeenUnit:
    """Of the rule whose sentence is ``when``: of its value in base units, as ``Signal.evidence`` gives it."""
    try:
        return _unit(parse(when).condition) or ""
    except SentenceError:
        return ""


def _unit(condition: Condition) -> SeenUnit | None:
    """None: it has no value to tell."""
    if isinstance(condition, Comparison):
        sides = condition.left, condition.right
        return next((side.unit for side in sides if isinstance(side, Number)), "")
    if isinstance(condition, And):
        # All of it holds where it does, and the first value is told.
        return next((unit for part in condition.of if (unit := _unit(part)) is not None), None)
    if isinstance(condition, Or):
        units = {_unit(part) for part in condition.of} - {None}
        return units.pop() if len(units) == 1 else ""
    if isinstance(condition, Not):
        return _unit(condition.of)
    if isinstance(condition, NoUpdate):
        return "s"
    return None if isinstance(condition, (Finding, RunIs)) else ""
