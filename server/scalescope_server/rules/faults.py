"""What is wrong with a rule, field by field: for a file, a form and the API alike."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from scalescope_server.rules.errors import Place, SentenceError
from scalescope_server.rules.expression import Expression
from scalescope_server.rules.parsing import parse, parse_duration
from scalescope_server.rules.spec import PACK_PREFIX, Rule
from scalescope_server.rules.spelling import nearest

# What a template of a message may ask for.
PLACES = ("value", "rule", "severity", "condition", "run", "project", "step", "culprit", "scale")
LONGEST_NAME = 100
LONGEST_TEXT = 2_000

_PLACE = re.compile(r"\{(\w+)\}")
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Fault(NamedTuple):
    """``field``: of the rule; ``place``: in the field's text, where one is known."""

    field: str
    message: str
    place: Place | None = None


def faults(rule: Rule, *, built_in: bool = False) -> list[Fault]:
    """All that is wrong with ``rule``; nothing, when it can be used. ``built_in``: it is one of the pack's."""
    return [*_name(rule, built_in=built_in), *_sentence(rule), *_scope(rule), *_told(rule)]


def _name(rule: Rule, *, built_in: bool) -> Iterator[Fault]:
    if not rule.name.strip() or len(rule.name) > LONGEST_NAME or _UNSEEN.search(rule.name):
        got = f"{len(rule.name)} characters" if len(rule.name) > LONGEST_NAME else f'"{_UNSEEN.sub("?", rule.name)}"'
        yield Fault("name", f"must be one line of 1 to {LONGEST_NAME} characters, got {got}")
    elif rule.name.startswith(PACK_PREFIX) and not built_in:
        yield Fault("name", f'must not begin with "{PACK_PREFIX}", which built-in rules do: call it otherwise')


def _sentence(rule: Rule) -> Iterator[Fault]:
    try:
        read: Expression | None = parse(rule.when)
    except SentenceError as error:
        read = None
        yield Fault("when", f"at {_where(error.place)}: {error.message}", error.place)
    yield from _duration("keep_firing", rule.keep_firing)
    yield from _duration("cooldown", rule.cooldown)
    if rule.keep_firing and read is not None and read.keep_firing is not None:
        yield Fault("keep_firing", "is said in the sentence too: say it once")


def _duration(field: str, text: str) -> Iterator[Fault]:
    try:
        if text:
            parse_duration(text)
    except SentenceError as error:
        # Only the whole is told: a duration is too short to be pointed into.
        yield Fault(field, f'must be a duration such as "50 steps" or "30s", got "{text:.40}"', error.place)


def _scope(rule: Rule) -> Iterator[Fault]:
    for field, glob in (("project", rule.project), ("run", rule.run), ("tag", rule.tag)):
        if not glob or len(glob) > LONGEST_NAME:
            yield Fault(
                field, f'must be a name or a glob of 1 to {LONGEST_NAME} characters, got "{glob:.40}": "*" is all'
            )


def _told(rule: Rule) -> Iterator[Fault]:
    for place in _PLACE.findall(rule.text):
        if place not in PLACES:
            meant = nearest(place, PLACES)
            advice = (
                f'did you mean "{{{meant}}}"?' if meant else f"there are {', '.join(f'{{{name}}}' for name in PLACES)}"
            )
            yield Fault("text", f'has no "{{{place}}}" to be filled in: {advice}')
    for field, text in (("text", rule.text), ("reason", rule.reason), ("source", rule.source)):
        if len(text) > LONGEST_TEXT:
            yield Fault(field, f"must be at most {LONGEST_TEXT:,} characters, got {len(text):,}")
    for channel in rule.channels:
        if not channel.strip() or len(channel) > LONGEST_NAME:
            yield Fault("channels", f'must be names of channels, got "{channel:.40}"')


def _where(place: Place) -> str:
    return f"column {place.column}" if place.line == 1 else f"line {place.line}, column {place.column}"
