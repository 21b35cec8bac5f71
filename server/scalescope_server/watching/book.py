"""The rule book made ready: each rule compiled once, and which of them watch a run."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec

from scalescope_server.rules.compiled import Compiled, compile_rule
from scalescope_server.rules.dependence import asks_state, silences
from scalescope_server.rules.expression import Seconds
from scalescope_server.rules.spec import Rule
from scalescope_server.store.alert_records import RuleBook, RuleRow
from scalescope_server.store.vigil import Vigil


class Entry(NamedTuple):
    """A rule that is on."""

    row: RuleRow
    rule: Rule
    compiled: Compiled

    @property
    def silence_s(self) -> float:
        """The longest time without an update that it asks for."""
        condition = self.compiled.condition
        return 0.0 if condition is None else max(silences(condition), default=0.0)

    @property
    def asks_state(self) -> bool:
        """Whether it asks what state the run is in."""
        return self.compiled.condition is not None and asks_state(self.compiled.condition)

    @property
    def patience_s(self) -> float:
        """For how long without an update it may still change what it says."""
        terms = self.compiled.terms
        return self.silence_s + sum(d.seconds for d in (terms.hold, terms.keep_firing) if isinstance(d, Seconds))


class Book(NamedTuple):
    """The rules that are on, at one revision."""

    revision: int = -1
    entries: tuple[Entry, ...] = ()

    def watching(self, vigil: Vigil) -> tuple[Entry, ...]:
        """Those whose scope the run is in."""
        return tuple(entry for entry in self.entries if in_scope(entry.rule, vigil))

    @property
    def pulses(self) -> bool:
        """Whether any asks for time that passes without an update."""
        return any(entry.compiled.needs.pulses for entry in self.entries)

    @property
    def patience_s(self) -> float:
        """For how long without an update any may still change what it says."""
        return max((entry.patience_s for entry in self.entries if entry.compiled.needs.pulses), default=0.0)


def opened(stored: RuleBook, before: Book = Book()) -> Book:  # noqa: B008 - frozen
    """The book as it is stored. What has not changed since ``before`` is not compiled again."""
    known = {(entry.row.id, entry.row.revision): entry for entry in before.entries}
    entries = [known.get((row.id, row.revision)) or entry_of(row) for row in stored.rules if row.enabled]
    return Book(stored.revision, tuple(entries))


def entry_of(row: RuleRow) -> Entry:
    """A stored rule, compiled. One that another version of this program has written may be one with an error."""
    rule = rule_of(row)
    return Entry(row, rule, compile_rule(rule))


def rule_of(row: RuleRow) -> Rule:
    """The rule that is stored, without what this version does not know of it."""
    known = {name: value for name, value in row.spec.items() if name in Rule.__struct_fields__}
    try:
        return msgspec.convert(known, Rule)
    except msgspec.ValidationError:
        return Rule(row.name, str(row.spec.get("when", "")))


def spec_of(rule: Rule) -> dict[str, object]:
    """A rule as it is stored."""
    # As JSON gives it back, so that what is stored compares equal.
    spec: dict[str, object] = msgspec.json.decode(msgspec.json.encode(rule))
    return spec


def in_scope(rule: Rule, vigil: Vigil) -> bool:
    """Whether a rule applies to a run: by its project, its name or id, and any of its tags."""
    return (
        fnmatchcase(vigil.project, rule.project)
        and (fnmatchcase(vigil.name, rule.run) or fnmatchcase(vigil.run, rule.run))
        and _is_tagged(rule.tag, vigil.tags)
    )


def _is_tagged(glob: str, tags: Sequence[str]) -> bool:
    return glob == "*" or any(fnmatchcase(tag, glob) for tag in tags)
