"""A tree as its one canonical sentence: what forms write, what is stored, and what parses to the same tree again."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from functools import singledispatch

from scalescope_server.rules.expression import (
    Across,
    And,
    Arithmetic,
    Comparison,
    Condition,
    Counted,
    Duration,
    Expression,
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
from scalescope_server.rules.names import MEASURES
from scalescope_server.rules.spelling import quoted, written

# What Python puts before an exponent of one digit.
_PADDING = re.compile(r"(?<=e)([+-])0")
# How tightly each form binds, loosest first; what binds less tightly than its place wants is put in parentheses.
_OR, _AND, _NOT, _OFTEN, _COMPARED, _SUM, _PRODUCT, _SIGN, _ATOM = range(9)
_TIGHTNESS: dict[type, int] = {
    Or: _OR,
    And: _AND,
    Not: _NOT,
    Often: _OFTEN,
    Comparison: _COMPARED,
    Nonfinite: _COMPARED,
    RunIs: _COMPARED,
    Negative: _SIGN,
}
_SIGNS = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT}
_SECONDS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
# Powers of two beyond these are told as such: a scale of 2^-24 says more than 5.960464477539063e-08.
_SMALL_POWER, _LARGE_POWER = -3, 20


def render(expression: Expression) -> str:
    """The sentence, from its ``when`` on."""
    hold = f" for {duration_text(expression.hold)}" if expression.hold else ""
    keep = f" keep firing for {duration_text(expression.keep_firing)}" if expression.keep_firing else ""
    return f"when {_text(expression.condition)}{hold}{keep}"


def part_text(part: Condition | Value) -> str:
    """A part of a sentence as it stands there."""
    return _text(part)


def duration_text(duration: Duration) -> str:
    """Such as "50 steps", "5 min" or "1.5 s"."""
    if isinstance(duration, Updates):
        return "1 step" if duration.count == 1 else f"{duration.count} steps"
    return _time(duration.seconds, "s", 1)


def _time(amount: float, unit: str, second: int) -> str:
    """``amount`` of ``unit``, a ``second`` being so many of it: in a larger unit where that leaves no fraction."""
    whole = ((amount / size / second, name) for name, size in _SECONDS if amount and amount % (size * second) == 0)
    told, name = next(whole, (amount, unit))
    return f"{_plain(told)} {name}"


def _plain(value: float) -> str:
    """The shortest decimal that is read as ``value`` again; a whole number without a fraction."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e16 else _PADDING.sub(r"\1", repr(value))


def _magnitude(value: float) -> str:
    fraction, exponent = math.frexp(value)
    if fraction == 0.5 and not _SMALL_POWER <= exponent - 1 < _LARGE_POWER:
        return f"2^{exponent - 1}"
    return _plain(value)


def _within(part: Condition | Value, tightness: int) -> str:
    """``part`` where something of at least this ``tightness`` has to stand."""
    return _text(part) if _tightness(part) >= tightness else f"({_text(part)})"


def _tightness(part: Condition | Value) -> int:
    match part:
        case Not(of=Nonfinite() | RunIs()):
            return _COMPARED
        case Arithmetic():
            return _SIGNS[part.sign]
        case Number() if part.value < 0:
            return _SIGN
    return _TIGHTNESS.get(type(part), _ATOM)


@singledispatch
def _text(part: Condition | Value) -> str:
    raise TypeError(f"expected a part of a sentence, got {part!r}")


@_text.register
def _(part: Number) -> str:
    if part.unit == "%":
        # As decimals: 0.07 * 100 is not 7 in binary, and 7% is what was written.
        return f"{(Decimal(repr(part.value)) * 100).normalize():f}%"
    sign = "-" if part.value < 0 else ""
    return sign + (_time(abs(part.value), "ms", 1000) if part.unit == "ms" else _magnitude(abs(part.value)))


@_text.register
def _(part: Series) -> str:
    return written(part.name)


@_text.register
def _(part: OfRanks) -> str:
    return part.series


@_text.register
def _(part: Measured) -> str:
    rows = MEASURES[part.measure].rows
    named = [f"{rows}={quoted(part.names)}"] if part.names != "*" else []
    left_out = [f"{rows}!={quoted(part.without)}"] if part.without else []
    selection = ", ".join(named + left_out)
    return f"{part.measure}{{{selection}}}" if selection else part.measure


@_text.register
def _(part: Negative) -> str:
    return f"-{_within(part.of, _ATOM)}"


@_text.register
def _(part: Pointwise) -> str:
    return f"{part.function}({_text(part.of)})"


@_text.register
def _(part: Arithmetic) -> str:
    tightness = _SIGNS[part.sign]
    return f"{_within(part.left, tightness)} {part.sign} {_within(part.right, tightness + 1)}"


@_text.register
def _(part: Over) -> str:
    share = "" if part.share is None else f", {_text(Number(part.share, '%'))}"
    return f"{part.function}({_text(part.of)}{share}, {duration_text(part.window)})"


@_text.register
def _(part: Counted) -> str:
    return f"{part.function}({_text(part.of)}, {duration_text(part.window)})"


@_text.register
def _(part: Across) -> str:
    return f"{part.function} by {part.by}({_text(part.of)})"


@_text.register
def _(part: Matching) -> str:
    return f"count by {part.by}({_text(part.of)})"


@_text.register
def _(part: Comparison) -> str:
    return f"{_within(part.left, _SUM)} {part.sign} {_within(part.right, _SUM)}"


@_text.register
def _(part: Nonfinite) -> str:
    return f"{_within(part.of, _SUM)} is not finite"


@_text.register
def _(part: Flag) -> str:
    return _text(part.of)


@_text.register
def _(part: Often) -> str:
    return f"{_within(part.of, _COMPARED)} in {part.times} of {part.updates} updates"


@_text.register
def _(part: Finding) -> str:
    return f"finding({part.code})"


@_text.register
def _(part: NoUpdate) -> str:
    return f"no update for {duration_text(part.within)}"


@_text.register
def _(part: RunIs) -> str:
    return f"run is {part.state}"


@_text.register
def _(part: RankDisagreement) -> str:
    return f"rank disagreement({part.series})"


@_text.register
def _(part: Not) -> str:
    if isinstance(part.of, Nonfinite):
        return f"{_within(part.of.of, _SUM)} is finite"
    if isinstance(part.of, RunIs):
        return f"run is not {part.of.state}"
    return f"not {_within(part.of, _NOT)}"


@_text.register
def _(part: And) -> str:
    return " and ".join(_within(each, _NOT) for each in part.of)


@_text.register
def _(part: Or) -> str:
    return " or ".join(_within(each, _AND) for each in part.of)
