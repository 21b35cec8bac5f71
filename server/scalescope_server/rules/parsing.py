"""A sentence read: ``parse`` gives its tree, or an error that points at the place."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib.resources import files

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from scalescope_server.rules import amounts, checking
from scalescope_server.rules.advising import advice
from scalescope_server.rules.amounts import A_DURATION, place_of
from scalescope_server.rules.errors import Place, SentenceError
from scalescope_server.rules.expression import Duration, Expression
from scalescope_server.rules.meaning import Within

# A few lines of text; reading takes time in proportion to it, and a page asks at every key.
LONGEST = 2_000

_VALUE = "a value or a condition, such as scale or changes(scale, 200 steps)"
# What a token that may come is called, what one is likeliest to want first; arithmetic might come almost anywhere.
_CALLED = {
    "SIGN": "a comparison such as > 1",
    "COMMA": '","',
    "RPAR": '")"',
    "RBRACE": '"}"',
    "AND": '"and"',
    "OR": '"or"',
    "FOR": '"for"',
    "KEEP": '"keep firing for"',
    "FIRING": '"firing"',
    "OF": '"of"',
    "UPDATE": '"update"',
    "BY": '"by"',
    "LPAR": '"("',
    "WORD": "a name",
    "NUMBER": "a number",
    "TEXT": "a text in double quotes",
    "EQUAL": '"="',
    "$END": "the end",
}
# Where these may come any value may, and a list of all its beginnings would say less.
_BEGIN_VALUE = {"WORD", "NUMBER", "LPAR"}
# After a whole value: another name, an argument list and a list of layers are the least likely.
_UNLIKELY = {"WORD", "LPAR", "BY"}


def parse(text: str) -> Expression:
    """What the sentence ``text`` means.

    Raises:
        SentenceError: at the first place where it means nothing.
    """
    return checking.expression_of(_read(text, "start"), Within())


def parse_duration(text: str) -> Duration:
    """What a duration such as "50 steps" or "5 min" means.

    Raises:
        SentenceError: if it means nothing.
    """
    return amounts.duration(_read(text, "amount"))


@cache
def _grammar() -> Lark:
    text = files(__package__).joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(text, parser="lalr", start=["start", "amount"], propagate_positions=True, maybe_placeholders=False)


def _read(text: str, start: str) -> Tree[Token]:
    if len(text) > LONGEST:
        got = f"{len(text):,} characters"
        raise SentenceError(_end_of(text), expected=f"at most {LONGEST:,} characters", got=got, advice="make two of it")
    try:
        return _grammar().parse(text, start=start)
    except UnexpectedToken as error:
        came, place = error.token.value, place_of(error.token)
        if error.token.type == "$END":
            came, place = "", _end_of(text)
    except UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        came, place = text[at], Place(error.line, error.column, at, at + 1)
    raise _unexpected(text, start, came, place)


def _unexpected(text: str, start: str, came: str, place: Place) -> SentenceError:
    """``came`` is what stands at ``place``, "" at the end of the text."""
    before = _grammar().parse_interactive(text[: place.start], start=start)
    *_, last = (None, *before.exhaust_lexer())
    is_duration = start == "amount" if last is None else last.type == "FOR"
    expected = A_DURATION if is_duration else _expected(before.accepts())
    got = f'"{came}"' if came else "the end of the text"
    return SentenceError(place, expected=expected, got=got, advice=advice(text, came, place))


def _expected(accepted: Collection[str]) -> str:
    if set(accepted) >= _BEGIN_VALUE:
        return _VALUE
    likely = set(accepted) - (_UNLIKELY if "AND" in accepted else set())
    told = [called for name, called in _CALLED.items() if name in likely]
    return f"{', '.join(told[:-1])} or {told[-1]}" if len(told) > 1 else told[0]


def _end_of(text: str) -> Place:
    line = text.count("\n") + 1
    column = len(text) - text.rfind("\n")
    return Place(line, column, len(text), len(text))
