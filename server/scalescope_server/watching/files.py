"""Files of rules on their way into the rule book and out of it, with what they say of the built-in rules."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future

from scalescope_server.rules.files import read_rules, write_rules
from scalescope_server.rules.pack import built_in
from scalescope_server.rules.spec import Rule
from scalescope_server.store.alert_records import RuleRow
from scalescope_server.store.writer import Writer
from scalescope_server.watching.book import rule_of, spec_of
from scalescope_server.watching.notices import ended


def read_file(text: str, name: str = "rules.yaml") -> tuple[Rule, ...]:
    """The rules of a file; of a built-in one the file need only say what is to be otherwise.

    Raises:
        RulesFileError: with every fault of every rule.
    """
    return read_rules(text, name, pack=built_in().by_name()).rules


def store_file(writer: Writer, rules: Iterable[Rule], at: float) -> Future[tuple[int, int]]:
    """(how many are new, how many have changed): all of them, or none."""
    pack = built_in()
    specs, own = ([spec_of(rule) for rule in some] for some in (rules, pack.rules))
    return writer.import_rules(specs, at, ended, own, pack.version)


def written_file(rows: Iterable[RuleRow], *, whole: bool) -> str:
    """The rules as a file: all of them, or of the built-in ones only what was changed (not ``whole``)."""
    pack = built_in().by_name()
    rules = [rule_of(row) for row in rows]
    chosen = rules if whole else [rule for rule in rules if rule != pack.get(rule.name)]
    return write_rules(chosen, pack=pack, whole=whole)
