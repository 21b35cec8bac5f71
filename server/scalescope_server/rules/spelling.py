"""How names are spelt: which need quotes, and which name was meant by one that is not known."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import takewhile

import msgspec

from scalescope_server.rules.names import RESERVED, SERIES

_BARE = re.compile(r"[A-Za-z_][A-Za-z_0-9]*", re.ASCII)


def written(series: str) -> str:
    """The name of a series as it stands in a sentence: in quotes where it would read as something else."""
    bare = _BARE.fullmatch(series) and series not in RESERVED and slip(series, SERIES) is None
    return series if bare else quoted(series)


def quoted(name: str) -> str:
    """In double quotes, with the escapes of JSON."""
    return msgspec.json.encode(name).decode()


def unquoted(text: str) -> str:
    """The name in double quotes.

    Raises:
        msgspec.DecodeError: where an escape in it is none of JSON's.
    """
    return msgspec.json.decode(text, type=str)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like ``name``, capitals aside; None where none is alike."""
    by_letters = {other.lower(): other for other in known}
    return next((by_letters[close] for close in get_close_matches(name.lower(), by_letters, n=1)), None)


def slip(name: str, known: Iterable[str]) -> str | None:
    """The known name from which one slip of the pen leads to ``name``: a letter too many, missing, wrong or swapped.

    A number is no slip: loss2 is another loss.
    """
    return next((other for other in known if name != other and _one_slip(name, other)), None)


def _one_slip(name: str, other: str) -> bool:
    start = _in_common(name, other)
    end = _in_common(name[start:][::-1], other[start:][::-1])
    came, meant = name[start : len(name) - end], other[start : len(other) - end]
    swapped = len(came) == 2 and came == meant[::-1]
    return swapped or (len(came) <= 1 and len(meant) <= 1 and not (came + meant).isdigit())


def _in_common(one: str, other: str) -> int:
    """How many letters both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
