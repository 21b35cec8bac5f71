"""Numbers with their units, and durations, as they stand in a sentence."""

from __future__ import annotations

import math
from decimal import Decimal

from lark import Token, Tree

from scalescope_server.rules.errors import Place, SentenceError
from scalescope_server.rules.expression import MOST_SECONDS, MOST_UPDATES, Duration, Number, Seconds, Updates
from scalescope_server.rules.spelling import nearest

_TIMES = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), Decimal("0.001")),
    **dict.fromkeys(("s", "sec", "second", "seconds"), Decimal(1)),
    **dict.fromkeys(("min", "minute", "minutes"), Decimal(60)),
    **dict.fromkeys(("h", "hour", "hours"), Decimal(3_600)),
    **dict.fromkeys(("d", "day", "days"), Decimal(86_400)),
}
_UPDATES = ("step", "steps", "update", "updates")
A_DURATION = 'a duration such as "50 steps" or "30s"'


def place_of(found: Tree[Token] | Token) -> Place:
    meta = found.meta if isinstance(found, Tree) else found
    return Place(meta.line or 1, meta.column or 1, meta.start_pos or 0, meta.end_pos or 0)


def number(amount: Tree[Token]) -> Number:
    """A number with a unit of values: none, a share, a time."""
    told, unit = _parts(amount)
    value = _value(told)
    if unit is None:
        return Number(float(value))
    if unit == "%":
        return Number(float(value / 100), "%")
    if unit.value in _UPDATES:
        got = f'"{told} {unit}", a number of updates'
        raise SentenceError(place_of(amount), expected="a value", got=got, advice=f"write {told} alone")
    return Number(float(value * _size(unit) * 1000), "ms")


def duration(amount: Tree[Token], expected: str = A_DURATION) -> Duration:
    """A number of updates or a time."""
    told, unit = _parts(amount)
    if unit is None or unit == "%":
        advice = f'say of what: "{told} steps", "{told} s" or "{told} min"'
        raise SentenceError(place_of(amount), expected=expected, got=f'"{told}{unit or ""}"', advice=advice)
    value = _value(told)
    if unit.value in _UPDATES:
        return _updates(amount, value)
    return _seconds(amount, float(value * _size(unit)))


def _updates(amount: Tree[Token], value: Decimal) -> Updates:
    if not 1 <= value <= MOST_UPDATES or value % 1:
        expected = f"a whole number of updates, 1 to {MOST_UPDATES:,}"
        raise SentenceError(place_of(amount), expected=expected, got=_words(amount))
    return Updates(int(value))


def _seconds(amount: Tree[Token], value: float) -> Seconds:
    if not 0 < value <= MOST_SECONDS:
        expected = f"a time of more than nothing and at most {MOST_SECONDS / 86_400:g} days"
        raise SentenceError(place_of(amount), expected=expected, got=_words(amount))
    return Seconds(value)


def whole(token: Token, *, most: int) -> int:
    """A count from 1 to ``most``."""
    value = _value(token)
    if not 1 <= value <= most or value % 1:
        raise SentenceError(place_of(token), expected=f"a whole number from 1 to {most}", got=f'"{token}"')
    return int(value)


def _parts(amount: Tree[Token]) -> tuple[Token, Token | None]:
    told, *unit = (child for child in amount.children if isinstance(child, Token))
    return told, unit[0] if unit else None


def _words(amount: Tree[Token]) -> str:
    return f'"{" ".join(str(child) for child in amount.children)}"'


def _value(token: Token) -> Decimal:
    """What was written, exactly: 7% is 0.07, not 7 times the float64 that is nearest to 0.01."""
    base, power, exponent = token.partition("^")
    if (power and not -1074 <= int(exponent) <= 1023) or not math.isfinite(float(base)):
        raise SentenceError(place_of(token), expected="a number that a float64 can hold", got=f'"{token:.40}"')
    return Decimal(math.ldexp(1.0, int(exponent))) if power else Decimal(base)


def _size(unit: Token) -> Decimal:
    """Seconds in a unit of time."""
    if unit.value not in _TIMES:
        close = "min" if unit.value == "m" else nearest(unit.value, [*_TIMES, *_UPDATES])
        advice = f'did you mean "{close}"?' if close else ""
        expected = "a unit: %, ms, s, min, h, d, steps or updates"
        raise SentenceError(place_of(unit), expected=expected, got=f'"{unit}"', advice=advice)
    return _TIMES[unit.value]
