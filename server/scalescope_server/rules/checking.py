"""From what was read to what it means: names that exist, units that fit, conditions where conditions belong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import get_args

from lark import Token, Tree

from scalescope_server.rules import amounts, calling, naming
from scalescope_server.rules.amounts import place_of
from scalescope_server.rules.errors import SentenceError
from scalescope_server.rules.expression import (
    And,
    Arithmetic,
    ArithmeticSign,
    Comparison,
    ComparisonSign,
    Duration,
    Expression,
    Negative,
    Nonfinite,
    Not,
    NoUpdate,
    Number,
    Often,
    Or,
    RunIs,
    Seconds,
    Unit,
    Updates,
)
from scalescope_server.rules.meaning import (
    DEEPEST,
    Meaning,
    Stated,
    Valued,
    Within,
    as_condition,
    as_value,
    fail,
    shape_of,
    tokens,
    trees,
)
from scalescope_server.rules.rendering import duration_text, part_text
from scalescope_server.rules.spelling import nearest
from scalescope_server.rules.ticks import RunState
from scalescope_server.rules.units import WORDS, Kind, alike, product, quotient

_STATES: dict[str, RunState] = {state: state for state in get_args(RunState)}
_COMPARISONS: dict[str, ComparisonSign] = {sign: sign for sign in get_args(ComparisonSign)}
_ARITHMETIC: dict[str, ArithmeticSign] = {sign: sign for sign in get_args(ArithmeticSign)}
_KINDS: dict[Unit, Kind] = {"": "bare", "%": "share", "ms": "ms"}
_UNITS = "a share is written as 20%, a time as 500 ms, any other number without a unit"


def expression_of(start: Tree[Token], within: Within) -> Expression:
    """What a whole sentence means.

    Raises:
        SentenceError: for the first place that means nothing.
    """
    condition, *rest = trees(start)
    stated = as_condition(check(condition, within))
    said: dict[str, Duration] = {str(part.data): amounts.duration(trees(part)[0]) for part in rest}
    return Expression(stated.condition, said.get("hold"), said.get("keep"))


def check(tree: Tree[Token], within: Within) -> Meaning:
    """What a piece means where it stands."""
    if within.depth > DEEPEST:
        got = f"more than {DEEPEST} pieces in each other"
        raise fail(tree, "a sentence that one can read", got, "make two rules of it")
    return _FORMS[tree.data](tree, replace(within, depth=within.depth + 1))


def _either(tree: Tree[Token], within: Within) -> Meaning:
    parts = [as_condition(check(part, within)) for part in trees(tree)]
    return Stated(Or(tuple(part.condition for part in parts)), shape_of(*parts), place_of(tree))


def _both(tree: Tree[Token], within: Within) -> Meaning:
    parts = [as_condition(check(part, within)) for part in trees(tree)]
    return Stated(And(tuple(part.condition for part in parts)), shape_of(*parts), place_of(tree))


def _negation(tree: Tree[Token], within: Within) -> Meaning:
    stated = as_condition(check(trees(tree)[0], within))
    return Stated(Not(stated.condition), stated.shape, place_of(tree))


def _comparison(tree: Tree[Token], within: Within) -> Meaning:
    left, right = _operands(tree, within)
    _fitting(left, right)
    sign = _COMPARISONS[tokens(tree)[0].value]
    return Stated(Comparison(sign, left.value, right.value), shape_of(left, right), place_of(tree))


def _arithmetic(tree: Tree[Token], within: Within) -> Meaning:
    left, right = _operands(tree, within)
    sign = _ARITHMETIC[tokens(tree)[0].value]
    if sign in ("+", "-"):
        kind = _fitting(left, right)
    else:
        kind = product(left.kind, right.kind) if sign == "*" else quotient(left.kind, right.kind)
    return Valued(Arithmetic(sign, left.value, right.value), kind, shape_of(left, right), place_of(tree))


def _operands(tree: Tree[Token], within: Within) -> tuple[Valued, Valued]:
    left, right = trees(tree)
    sign = tokens(tree)[0]
    expected = f'a value beside "{sign}"'
    return as_value(check(left, within), expected), as_value(check(right, within), expected)


def _fitting(left: Valued, right: Valued) -> Kind:
    """What both are told in."""
    for share, other in ((left, right), (right, left)):
        if share.kind == "share" and _is_beyond(other):
            told = part_text(other.value)
            raise SentenceError(other.place, expected="a share", got=f'"{told}"', advice=f'write "{told}%"')
    kind = alike(left.kind, right.kind)
    if kind is None:
        expected = f"{WORDS[left.kind]} like {part_text(left.value)}"
        advice = f'write "rate({part_text(left.value)}, 1000 steps)"' if left.kind == "flag" else _UNITS
        raise SentenceError(right.place, expected=expected, got=str(right), advice=advice)
    return kind


def _is_beyond(value: Valued) -> bool:
    """A plain number that no share can be."""
    return isinstance(value.value, Number) and value.kind == "bare" and abs(value.value.value) > 1


def _negative(tree: Tree[Token], within: Within) -> Meaning:
    found = as_value(check(trees(tree)[0], within), 'a value after "-"')
    value = found.value
    negated = Number(-value.value, value.unit) if isinstance(value, Number) else Negative(value)
    return Valued(negated, found.kind, found.shape, place_of(tree))


def _amount(tree: Tree[Token], _: Within) -> Meaning:
    number = amounts.number(tree)
    return Valued(number, _KINDS[number.unit], "run", place_of(tree))


def _state(tree: Tree[Token], within: Within) -> Meaning:
    """``run is silent`` or ``loss is not finite``."""
    (subject,), word, negated = trees(tree), tokens(tree)[-1], len(tokens(tree)) > 1
    if subject.data == "name" and subject.children[0] == "run":
        found = Stated(RunIs(_state_of(word)), "run", place_of(tree))
        calling.only_outside(tree, within)
    else:
        found, negated = _nonfinite(subject, word, within), not negated
    return Stated(Not(found.condition), found.shape, place_of(tree)) if negated else found


def _state_of(word: Token) -> RunState:
    if word.value not in _STATES:
        close = nearest(word.value, _STATES)
        advice = f'did you mean "{close}"?' if close else ""
        raise fail(word, f"a state of a run: {', '.join(_STATES)}", f'"{word}"', advice)
    return _STATES[word.value]


def _nonfinite(subject: Tree[Token], word: Token, within: Within) -> Stated:
    if word.value != "finite":
        advice = 'a value "is finite" or "is not finite", a run "is silent"; numbers are compared: == 1'
        raise fail(word, '"finite"', f'"{word}"', advice)
    value = as_value(check(subject, within))
    return Stated(Nonfinite(value.value), value.shape, value.place)


def _often(tree: Tree[Token], within: Within) -> Meaning:
    subject, amount = trees(tree)
    stated = as_condition(check(subject, replace(within, window=True)))
    window = amounts.duration(amount, 'a number of updates, such as "10 updates"')
    (times,) = tokens(tree)
    if not isinstance(window, Updates):
        told = duration_text(window)
        advice = f'write "count({part_text(stated.condition)}, {told}) >= {times}"'
        raise fail(amount, "a number of updates", f'"{told}"', advice)
    often = Often(stated.condition, amounts.whole(times, most=window.count), window.count)
    return Stated(often, stated.shape, place_of(tree))


def _no_update(tree: Tree[Token], within: Within) -> Meaning:
    calling.only_outside(tree, within)
    (amount,) = trees(tree)
    duration = amounts.duration(amount, 'a time such as "10 min"')
    if not isinstance(duration, Seconds):
        raise fail(amount, 'a time such as "10 min"', f'"{duration_text(duration)}"', "no update comes to be counted")
    return Stated(NoUpdate(duration), "run", place_of(tree))


_FORMS: dict[str, Callable[[Tree[Token], Within], Meaning]] = {
    "either": _either,
    "both": _both,
    "negation": _negation,
    "comparison": _comparison,
    "arithmetic": _arithmetic,
    "negative": _negative,
    "amount": _amount,
    "state": _state,
    "often": _often,
    "no_update": _no_update,
    "name": naming.name,
    "own_name": naming.own_name,
    "selected": naming.selected,
    "disagreement": calling.disagreement,
    "call": partial(calling.call, check=check),
    "call_by": partial(calling.call_by, check=check),
}
