"""What somebody may have meant who wrote something else than a sentence: the last words of an error."""

from __future__ import annotations

import re

from scalescope_server.rules.errors import Place

# Words of other languages, and what they are called here.
_SLIPS = {
    "=": 'write "==" to compare',
    "&": 'write "and"',
    "|": 'write "or"',
    "!": 'write "not", or "!=" to compare',
    "'": 'write texts in double quotes: "blocks.*"',
    "[": 'a window stands in the parentheses: "mean(loss, 200 steps)"',
    "^": "powers are written of 2 alone: 2^-24",
}
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_SHOUTED = re.compile(r"\b(?:WHEN|AND|OR|NOT|FOR|KEEP|FIRING|IN|OF|IS|BY)\b")
_BEGUN = re.compile(r"\s*(if|alert|whenever|where|unless)\b", re.IGNORECASE)
_BY = re.compile(r"(\w+ by (?:layer|module|rank))\s*$")
_SELECTED = re.compile(r"\{[^}]*=\s*$")
_WORD = re.compile(r"[\w.*?\[\]-]+")


def advice(text: str, came: str, place: Place) -> str:
    """What to do about ``came`` at ``place`` of ``text``, "" at its end; "" where nobody knows."""
    if came in _COMPARISONS:
        return 'one comparison at a time: "128 < scale and scale < 1024"'
    before = text[: place.start]
    return _form(before, text[place.start :], came) or _SLIPS.get(came[:1], "") or _parentheses(before, came)


def _form(before: str, rest: str, came: str) -> str:
    shouted = _SHOUTED.findall(_blanked(before + came))
    if shouted:
        return f'words are written small: "{shouted[-1].lower()}"'
    begun = _BEGUN.match(before)
    if begun:
        return f'write "when" in place of "{begun[1]}"'
    word = _WORD.match(rest)
    by = _BY.search(before)
    if by and word:
        return f'write "{by[1]}({word[0]})"'
    return f'write ="{word[0]}"' if word and _SELECTED.search(_blanked(before)) else ""


def _parentheses(before: str, came: str) -> str:
    opened: list[int] = []
    for at, sign in enumerate(_blanked(before)):
        if sign == "(":
            opened.append(at)
        elif sign == ")" and opened:
            opened.pop()
    if came == ")" and not opened:
        return 'no "(" is open here: leave it out'
    if not came and opened:
        line_begins = before.rfind("\n", 0, opened[-1])
        return f'the "(" at column {opened[-1] - line_begins} has no ")"'
    return ""


def _blanked(text: str) -> str:
    """``text`` without what stands in quotes, as long as before."""
    return _QUOTED.sub(lambda quoted: " " * len(quoted[0]), text)
