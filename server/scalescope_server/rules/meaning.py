"""What a piece of a sentence turned out to be, and where it stands: what checking hands from piece to piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from lark import Token, Tree

from scalescope_server.rules.amounts import place_of
from scalescope_server.rules.errors import Place, SentenceError
from scalescope_server.rules.expression import Condition, Each, Flag, OfRanks, Series, Shape, Value
from scalescope_server.rules.rendering import part_text
from scalescope_server.rules.units import WORDS, Kind

# Deeper than anybody writes, and far from what would exhaust the interpreter's stack.
DEEPEST = 40


@dataclass(frozen=True, slots=True)
class Within:
    """Where a piece stands: inside a ``by`` (None: nowhere), inside a window, and how deep."""

    by: Each | None = None
    window: bool = False
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Valued:
    """A value. ``kind``: what it is told in; ``shape``: of what there is one each."""

    value: Value
    kind: Kind
    shape: Shape
    place: Place

    def __str__(self) -> str:
        return f'{WORDS[self.kind]}, "{part_text(self.value)}"'


@dataclass(frozen=True, slots=True)
class Stated:
    """A condition. ``shape``: for what each it holds or does not."""

    condition: Condition
    shape: Shape
    place: Place

    def __str__(self) -> str:
        return f'a condition, "{part_text(self.condition)}"'


Meaning: TypeAlias = Valued | Stated


def as_value(found: Meaning, expected: str = "a value") -> Valued:
    """``found`` as a value.

    Raises:
        SentenceError: if it is a condition.
    """
    if isinstance(found, Valued):
        return found
    advice = "count(...) and rate(...) make a value of a condition"
    raise SentenceError(found.place, expected=expected, got=str(found), advice=advice)


def as_condition(found: Meaning) -> Stated:
    """``found`` as a condition, which a series of 0 and 1 is too.

    Raises:
        SentenceError: if it is another value.
    """
    if isinstance(found, Stated):
        return found
    if found.kind == "flag" and isinstance(found.value, Series | OfRanks):
        return Stated(Flag(found.value), found.shape, found.place)
    advice = f'compare it with something, as in "{part_text(found.value)} > 1"'
    raise SentenceError(found.place, expected="a condition", got=str(found), advice=advice)


def shape_of(*parts: Meaning) -> Shape:
    """The shape of what they make together; inside one ``by`` there is but one other than the run's."""
    return next((part.shape for part in parts if part.shape != "run"), "run")


def trees(tree: Tree[Token]) -> list[Tree[Token]]:
    return [child for child in tree.children if isinstance(child, Tree)]


def tokens(tree: Tree[Token]) -> list[Token]:
    return [child for child in tree.children if isinstance(child, Token)]


def fail(tree: Tree[Token] | Token, expected: str, got: str, advice: str = "") -> SentenceError:
    """The error at this place, to be raised."""
    return SentenceError(place_of(tree), expected=expected, got=got, advice=advice)
