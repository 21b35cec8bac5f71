"""Which values may be compared, added and multiplied, by what they are told in."""

from __future__ import annotations

from typing import Literal, TypeAlias

from scalescope_server.rules.names import Quantity

# "bare": a number without a unit in the sentence itself, which takes on the unit of what it stands beside.
Kind: TypeAlias = Quantity | Literal["bare"]

WORDS: dict[Kind, str] = {
    "number": "a number",
    "share": "a share",
    "ms": "a time",
    "flag": "a yes or no",
    "any": "a number",
    "bare": "a number",
}


def alike(left: Kind, right: Kind) -> Kind | None:
    """What a sum of both is told in; None where they cannot be added or compared."""
    if left == right:
        return left
    if "any" in (left, right):
        return "any"
    if "bare" in (left, right):
        return right if left == "bare" else left
    return "number" if {left, right} == {"number", "flag"} else None


def product(left: Kind, right: Kind) -> Kind:
    """A share of something is that thing; a number of times of it too."""
    plain: tuple[Kind, ...] = ("bare", "share", "flag", "number")
    for factor in plain:
        if left == factor:
            return right
        if right == factor:
            return left
    return "any"


def quotient(left: Kind, right: Kind) -> Kind:
    """A ratio of any two things fits every unit: 0.2 and 20% say the same of it."""
    return left if right in ("bare", "flag") and left != "bare" else "any"
