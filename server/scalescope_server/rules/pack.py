"""The rules that come with the product, on by default: YAML beside this module, each with its reason and its source."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import NamedTuple

from scalescope_server.rules.files import read_rules
from scalescope_server.rules.spec import Rule

_FOLDER = "built_in"


class Pack(NamedTuple):
    """``version``: raised in every file when a rule in any of them changes."""

    version: int
    rules: tuple[Rule, ...]

    def by_name(self) -> dict[str, Rule]:
        return {rule.name: rule for rule in self.rules}


@cache
def built_in() -> Pack:
    """All built-in rules, by the names of their files and in the order within them."""
    found = [
        read_rules(path.read_text(encoding="utf-8"), path.name, built_in=True)
        for path in sorted(files(__package__).joinpath(_FOLDER).iterdir(), key=lambda path: path.name)
    ]
    return Pack(max(each.version for each in found), tuple(rule for each in found for rule in each.rules))
