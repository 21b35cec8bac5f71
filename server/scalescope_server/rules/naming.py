"""What a name in a sentence means: a series of the run, a measure of its layers, or a series of its ranks."""

from __future__ import annotations

import msgspec
from lark import Token, Tree

from scalescope_server.rules.amounts import place_of
from scalescope_server.rules.expression import Measured, OfRanks, Series
from scalescope_server.rules.meaning import Meaning, Valued, Within, fail, tokens, trees
from scalescope_server.rules.names import MEASURES, RANKED, SERIES
from scalescope_server.rules.spelling import nearest, quoted, slip, unquoted


def name(tree: Tree[Token], within: Within) -> Meaning:
    """A bare name. What is nearly the name of a known series is taken for a slip of the pen."""
    (word,) = tokens(tree)
    if within.by in ("layer", "module") and word.value in MEASURES:
        return _measured(tree, within, Measured(word.value))
    if within.by == "rank" and word.value in RANKED:
        return Valued(OfRanks(word.value), SERIES[word.value], "rank", place_of(tree))
    if word.value in SERIES:
        return _series(tree, word.value)
    if word.value in MEASURES:
        raise _by_itself(tree, word)
    known = {*SERIES, *MEASURES} if within.by else SERIES
    meant = slip(word.value, known)
    if meant:
        advice = f'did you mean "{meant}"? A series of your own that is called so: {quoted(word.value)}'
        raise fail(word, "a name of a series", f'"{word}"', advice)
    return _series(tree, word.value)


def own_name(tree: Tree[Token], _: Within) -> Meaning:
    """A name in quotes: a series, whatever it is called."""
    (text,) = tokens(tree)
    return _series(tree, _unquoted(text))


def selected(tree: Tree[Token], within: Within) -> Meaning:
    """A measure of some layers: ``subnormal_share{layer="blocks.*"}``."""
    (word,) = tokens(tree)
    if word.value not in MEASURES:
        meant = nearest(word.value, MEASURES)
        advice = f'did you mean "{meant}"?' if meant else f"there are {', '.join(MEASURES)}"
        raise fail(word, "a measure of layers or modules", f'"{word}"', advice)
    if within.by not in ("layer", "module"):
        raise _by_itself(tree, word)
    said = [_selection(selection, MEASURES[word.value].rows) for selection in trees(tree)]
    globs = dict(said)
    if len(globs) < len(said):
        raise fail(
            tree, 'one "=" and one "!=" at most', f"{len(said)} of them", "take other layers in a rule of their own"
        )
    return _measured(tree, within, Measured(word.value, globs.get("=", "*"), globs.get("!=", "")))


def _selection(selection: Tree[Token], rows: str) -> tuple[str, str]:
    label, sign, text = tokens(selection)
    if label.value != rows:
        raise fail(label, f'"{rows}"', f'"{label}"', f"write {rows}{sign}{text}")
    glob = _unquoted(text)
    if not glob:
        raise fail(text, f"a name of a {rows} or a glob of names", '""', f'"*" stands for every {rows}')
    if "[" in glob.rpartition("]")[2]:
        raise fail(text, f"a name of a {rows} or a glob of names", text.value, 'write "]" behind what the "[" begins')
    return sign.value, glob


def _measured(tree: Tree[Token], within: Within, measured: Measured) -> Meaning:
    quantity, rows = MEASURES[measured.measure]
    if rows != within.by:
        advice = f'write "by {rows}" instead of "by {within.by}"'
        raise fail(tree, f"a measure of each {within.by}", f"{measured.measure}, one of each {rows}", advice)
    return Valued(measured, quantity, rows, place_of(tree))


def _series(tree: Tree[Token], series: str) -> Meaning:
    return Valued(Series(series), SERIES.get(series, "any"), "run", place_of(tree))


def _by_itself(tree: Tree[Token], word: Token) -> Exception:
    rows = MEASURES[word.value].rows
    advice = f'say which of them counts: "max by {rows}(...)", "median by {rows}(...)", "count by {rows}(... > ...)"'
    return fail(tree, "one value for the run", f"{word}, one of each {rows}", advice)


def _unquoted(text: Token) -> str:
    try:
        return unquoted(text.value)
    except msgspec.DecodeError:
        raise fail(text, "a text with the escapes of JSON", text.value, 'write a backslash as "\\\\"') from None
