"""YAML as nodes, which know their lines: nothing of it becomes an object, and none is larger than what was written."""

from __future__ import annotations

from collections.abc import Iterator

import yaml
from yaml.events import AliasEvent, CollectionEndEvent, Event, ScalarEvent, SequenceStartEvent, StreamEndEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

# A file of rules is five levels deep: the file, its rules, a rule, a list of channels and their names.
DEEPEST = 8
# Far more than anybody writes by hand; a file is read whole.
LONGEST = 1_000_000


class ComposingError(ValueError):
    """A text that is no YAML, or more of it than is read. ``line``: where, from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def compose(text: str) -> Node | None:
    """The nodes of ``text``; None where it holds nothing.

    Raises:
        ComposingError: if it is no YAML, is longer or deeper than files of rules are, or refers to parts of itself:
            a few lines could stand for billions then.
    """
    if len(text) > LONGEST:
        raise ComposingError(1, f"expected at most {LONGEST:,} characters, got {len(text):,}")
    try:
        return _document(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ComposingError(mark.line + 1 if mark else 1, f"is no YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ComposingError(1, f"is no YAML: {error}".splitlines()[0]) from None


def _document(events: Iterator[Event]) -> Node | None:
    """The only one of a file."""
    next(events)
    if isinstance(next(events), StreamEndEvent):
        return None
    node = _node(next(events), events, 1)
    next(events)
    rest = next(events)
    if not isinstance(rest, StreamEndEvent):
        raise ComposingError(rest.start_mark.line + 1, "holds another document: write all rules in one list")
    return node


def _node(event: Event, events: Iterator[Event], depth: int) -> Node:
    line = event.start_mark.line + 1
    if isinstance(event, AliasEvent):
        message = f'"*{event.anchor}" stands for something written elsewhere: write it out, each rule by itself'
        raise ComposingError(line, message)
    if depth > DEEPEST:
        raise ComposingError(line, "is nested too deeply to be a file of rules")
    if isinstance(event, ScalarEvent):
        return ScalarNode(event.tag, event.value, event.start_mark, event.end_mark, style=event.style)
    parts = []
    while not isinstance(part := next(events), CollectionEndEvent):
        parts.append(_node(part, events, depth + 1))
    if isinstance(event, SequenceStartEvent):
        return SequenceNode(event.tag, parts, event.start_mark, part.end_mark)
    pairs = list(zip(parts[::2], parts[1::2], strict=True))
    return MappingNode(event.tag, pairs, event.start_mark, part.end_mark)
