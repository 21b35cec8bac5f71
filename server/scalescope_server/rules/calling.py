"""What a function means at its arguments: over a window, by layer or rank, at one value, or as a condition."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Protocol, get_args

from lark import Token, Tree

from scalescope_server.rules import amounts, functions
from scalescope_server.rules.amounts import place_of
from scalescope_server.rules.errors import SentenceError
from scalescope_server.rules.expression import (
    Across,
    AcrossName,
    Counted,
    CountName,
    Duration,
    Each,
    Finding,
    Matching,
    Number,
    Over,
    OverName,
    Pointwise,
    PointwiseName,
    RankDisagreement,
)
from scalescope_server.rules.functions import Function
from scalescope_server.rules.meaning import (
    Meaning,
    Stated,
    Valued,
    Within,
    as_condition,
    as_value,
    fail,
    tokens,
    trees,
)
from scalescope_server.rules.names import CODES, COMPARED, MEASURES, RANKED
from scalescope_server.rules.spelling import nearest

_OVER: dict[str, OverName] = {name: name for name in functions.OVER}
_POINTWISE: dict[str, PointwiseName] = {name: name for name in get_args(PointwiseName)}
_ACROSS: dict[str, AcrossName] = {name: name for name in get_args(AcrossName)}
_COUNTS: dict[str, CountName] = {name: name for name in get_args(CountName)}
_EACH: dict[str, Each] = {each: each for each in get_args(Each)}


class Check(Protocol):
    """What an argument means."""

    def __call__(self, tree: Tree[Token], within: Within) -> Meaning: ...


def call(tree: Tree[Token], within: Within, check: Check) -> Meaning:
    """``median(grad_norm, 500 steps)``, ``finding(SCALE_THRASH)``."""
    name = tokens(tree)[0].value
    if name in _OVER:
        return _over(tree, within, check, _OVER[name])
    if name in _COUNTS:
        return _counted(tree, within, check, _COUNTS[name])
    if name in _POINTWISE:
        return _pointwise(tree, within, check, _POINTWISE[name])
    if name == "finding":
        return _finding(tree)
    raise _unknown(tree, name, functions.names())


def call_by(tree: Tree[Token], within: Within, check: Check) -> Meaning:
    """``max by layer(...)``: one value for the run out of one for each."""
    name, each = tokens(tree)
    if each.value not in _EACH:
        advice = f'write "{name} by layer(...)", "{name} by module(...)" or "{name} by rank(...)"'
        raise fail(each, '"layer", "module" or "rank"', f'"{each}"', advice)
    if name.value not in functions.ACROSS:
        raise _unknown(tree, name.value, functions.ACROSS)
    by = _EACH[each.value]
    (argument,) = _arguments(tree, functions.ACROSS[name.value], 1)
    found = check(argument, replace(within, by=by))
    _told_by(found, by)
    if name.value == "count":
        return Valued(Matching(by, as_condition(found).condition), "number", "run", place_of(tree))
    value = as_value(found, f'a value, which "count by {by}" alone does without')
    kind = "share" if value.kind == "flag" and name.value in ("mean", "median") else value.kind
    kind = "number" if name.value == "sum" and kind in ("share", "flag") else kind
    return Valued(Across(_ACROSS[name.value], by, value.value), kind, "run", place_of(tree))


def disagreement(tree: Tree[Token], _: Within) -> Meaning:
    """Ranks that told different values."""
    rank, series = tokens(tree)
    if rank.value != "rank":
        raise fail(rank, '"rank disagreement"', f'"{rank} disagreement"', "ranks alone disagree")
    return Stated(RankDisagreement(_known(series, "what ranks are compared in", COMPARED)), "run", place_of(tree))


def only_outside(tree: Tree[Token], within: Within) -> None:
    """What time alone tells stands in no window and by no layer: neither has anything to count.

    Raises:
        SentenceError: if it does.
    """
    if within.window or within.by:
        got = "one that is asked while no update comes"
        raise fail(tree, "a condition on updates", got, 'combine it by "and" and "or" outside of the parentheses')


def _over(tree: Tree[Token], within: Within, check: Check, name: OverName) -> Meaning:
    function = functions.OVER[name]
    operand, *between, last = _arguments(tree, function, 3 if name == "quantile" else 2)
    value = as_value(check(operand, replace(within, window=True)))
    share = _share(between[0], within, check) if between else None
    over = Over(name, value.value, _window(last, function), share)
    return Valued(over, functions.told_in(name, value.kind), value.shape, place_of(tree))


def _share(argument: Tree[Token], within: Within, check: Check) -> float:
    value = as_value(check(argument, within), "a share such as 95%")
    if not isinstance(value.value, Number) or value.kind not in ("share", "bare") or not 0 <= value.value.value <= 1:
        raise fail(argument, "a share from 0% to 100%", str(value), 'write, for example, "95%"')
    return value.value.value


def _counted(tree: Tree[Token], within: Within, check: Check, name: CountName) -> Meaning:
    """Of a condition; and ``rate`` of a value, which is another thing."""
    function = functions.COUNT if name == "count" else functions.RATE
    operand, last = _arguments(tree, function, 2)
    found = check(operand, replace(within, window=True))
    window = _window(last, function)
    if name == "rate" and isinstance(found, Valued) and found.kind != "flag":
        return Valued(Over("rate", found.value, window), "number", found.shape, place_of(tree))
    stated = as_condition(found)
    counted = Counted(name, stated.condition, window)
    return Valued(counted, "number" if name == "count" else "share", stated.shape, place_of(tree))


def _pointwise(tree: Tree[Token], within: Within, check: Check, name: PointwiseName) -> Meaning:
    (operand,) = _arguments(tree, functions.POINTWISE[name], 1)
    value = as_value(check(operand, within))
    kind = value.kind if name == "abs" else "number"
    return Valued(Pointwise(name, value.value), kind, value.shape, place_of(tree))


def _arguments(tree: Tree[Token], function: Function, count: int) -> list[Tree[Token]]:
    found = trees(tree)
    if len(found) != count:
        name = tokens(tree)[0]
        came = "nothing" if not found else f"{len(found)} argument{'s' if len(found) > 1 else ''}"
        advice = f'write, for example, "{function.example.removeprefix("when ")}"'
        raise fail(tree, f'"{name}" of {function.takes}', came, advice)
    return found


def _window(argument: Tree[Token], function: Function) -> Duration:
    expected = 'a window such as "200 steps" or "5 min"'
    if argument.data != "amount":
        advice = f'write, for example, "{function.example.removeprefix("when ")}"'
        raise fail(argument, expected, "something else", advice)
    return amounts.duration(argument, expected)


def _finding(tree: Tree[Token]) -> Stated:
    (argument,) = _arguments(tree, functions.CONDITIONS["finding"], 1)
    if argument.data != "name":
        raise fail(argument, "a code of a finding", "something else", f"write one of {', '.join(CODES)}")
    return Stated(Finding(_known(tokens(argument)[0], "a code of a finding", CODES)), "run", place_of(tree))


def _known(word: Token, expected: str, known: Collection[str]) -> str:
    """``word``, where it is one of the names ``known``."""
    if word.value in known:
        return str(word)
    meant = nearest(word.value, known)
    raise fail(word, expected, f'"{word}"', f'did you mean "{meant}"?' if meant else f"there are {', '.join(known)}")


def _unknown(tree: Tree[Token], name: str, known: Iterable[str]) -> SentenceError:
    word = tokens(tree)[0]
    meant = functions.SYNONYMS.get(name) or nearest(name, known)
    advice = f'did you mean "{meant}"?' if meant else f"there are {', '.join(known)}"
    return fail(word, "a function", f'"{name}"', advice)


def _told_by(found: Meaning, by: Each) -> None:
    if found.shape == "run":
        names = RANKED if by == "rank" else [name for name, named in MEASURES.items() if named.rows == by]
        advice = f"what there is one of for each {by}: {', '.join(names)}"
        raise SentenceError(found.place, expected=f"a value of each {by}", got=str(found), advice=advice)
