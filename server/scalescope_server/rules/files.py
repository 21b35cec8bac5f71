"""Rules as YAML, which teams keep beside their code: read with the line of each fault, and written again.

::

    version: 1
    rules:
      - name: the scale thrashes
        when: changes(scale, 200 steps) >= 6
        for: 50 steps
        severity: critical
        channels: [slack]

``for`` may stand beside the sentence or in it. A file may say something else of a built-in rule: the fields that are
to be otherwise, below its name. Scalars are read as they are written, whatever YAML makes of them:
``project: on`` is the project "on".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple, TypeVar, get_args

import msgspec
import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from scalescope_server.rules.composing import ComposingError, compose
from scalescope_server.rules.errors import SentenceError
from scalescope_server.rules.faults import Fault, faults
from scalescope_server.rules.parsing import parse, parse_duration
from scalescope_server.rules.rendering import render
from scalescope_server.rules.spec import PACK_PREFIX, Rule, Severity
from scalescope_server.rules.spelling import nearest

# Each sentence of a file is parsed and checked: so many take two seconds.
MOST_RULES = 2_000

_FIELDS = Rule.__struct_fields__
_BLANK = Rule("", "")
_SEVERITIES: dict[str, Severity] = {severity: severity for severity in get_args(Severity)}
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_HOLD = "for"
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")

Known = TypeVar("Known")


class Trouble(NamedTuple):
    """``line`` of the file, from 1."""

    line: int
    message: str


class RulesFileError(ValueError):
    """A file that holds no rules, or some that cannot be used. ``troubles``: all of them, in the order of lines."""

    def __init__(self, name: str, troubles: Sequence[Trouble]) -> None:
        self.name = name
        self.troubles = tuple(sorted(troubles))
        super().__init__("\n".join(f"{name}:{trouble.line}: {trouble.message}" for trouble in self.troubles))


class RulesFile(NamedTuple):
    """``version``: what its author counts, 1 where it is not said."""

    version: int
    rules: tuple[Rule, ...]


def read_rules(
    text: str, name: str = "rules.yaml", *, built_in: bool = False, pack: Mapping[str, Rule] = MappingProxyType({})
) -> RulesFile:
    """The rules in ``text``. ``name`` stands before each fault; ``built_in``: they are the pack's.

    ``pack``: the built-in rules by name. What the file says of one is said instead of what that says; the rest stays.

    Raises:
        RulesFileError: with every fault of every rule.
    """
    reading = _Reading(built_in=built_in, pack=pack)
    found = reading.file(_composed(text, name))
    if reading.troubles:
        raise RulesFileError(name, reading.troubles)
    return found


def write_rules(
    rules: Sequence[Rule], version: int = 1, *, pack: Mapping[str, Rule] = MappingProxyType({}), whole: bool = True
) -> str:
    """``rules`` as a file that :func:`read_rules` reads as the same, with the same ``pack``.

    What is as usual is left out, of a built-in rule what the pack says too, unless ``whole``.
    """
    told = {"version": version, "rules": [_said(rule, _usual(rule, pack, whole=whole)) for rule in rules]}
    text = str(yaml.safe_dump(told, sort_keys=False, allow_unicode=True, width=120))
    # YAML reads these as the end of a line, even where they stand in quotes.
    if _LINE_ENDS.search(text):
        text = str(yaml.safe_dump(told, sort_keys=False, width=120))
    return text


def _usual(rule: Rule, pack: Mapping[str, Rule], *, whole: bool) -> Sequence[Rule]:
    """What is left out is what all of these say."""
    base = pack.get(rule.name)
    if base is None:
        return (_BLANK,)
    return (_BLANK, base) if whole else (base,)


def _said(rule: Rule, usual: Sequence[Rule]) -> dict[str, object]:
    told: dict[str, object] = {"name": rule.name}
    for name in _FIELDS:
        value = getattr(rule, name)
        if any(value != getattr(each, name) for each in usual):
            told[name] = list(value) if isinstance(value, tuple) else value
    return told


def _composed(text: str, name: str) -> Node:
    try:
        node = compose(text)
    except ComposingError as error:
        raise RulesFileError(name, [Trouble(error.line, str(error))]) from None
    if node is None:
        raise RulesFileError(name, [Trouble(1, 'expected "rules:" and a list of rules, got nothing')])
    return node


class _Reading:
    """One file: what was found wrong so far, and on which lines names stand."""

    def __init__(self, *, built_in: bool, pack: Mapping[str, Rule]) -> None:
        self.troubles: list[Trouble] = []
        self._built_in = built_in
        self._pack = pack
        self._names: dict[str, int] = {}

    def file(self, node: Node) -> RulesFile:
        said = self._fields(node, "a file of rules", ("version", "rules"))
        version, rules = said.get("version"), said.get("rules")
        if isinstance(node, MappingNode) and not isinstance(rules, SequenceNode):
            self._wrong(rules or node, '"rules" must be a list: begin each rule with "- name: ..."')
        each = rules.value if isinstance(rules, SequenceNode) else ()
        if len(each) > MOST_RULES:
            self._wrong(each[MOST_RULES], f"expected at most {MOST_RULES:,} rules in a file, got {len(each):,}")
            return RulesFile(1, ())
        return RulesFile(self._version(version), tuple(filter(None, map(self._rule, each))))

    def _version(self, node: Node | None) -> int:
        if node is None:
            return 1
        if isinstance(node, ScalarNode) and node.value.isdecimal() and len(node.value) < 10:
            return int(node.value)
        self._wrong(node, "'version' must be a whole number, such as 1")
        return 1

    def _rule(self, node: Node) -> Rule | None:
        before = len(self.troubles)
        nodes = self._fields(node, "a rule", (*_FIELDS, _HOLD))
        begun = len(self.troubles)
        base = self._base(nodes.get("name"))
        if not isinstance(node, MappingNode):
            return None
        is_unknown = len(self.troubles) > begun
        missing = [] if base else [name for name in ("name", "when") if name not in nodes]
        for name in [] if is_unknown else missing:
            self._wrong(node, f"the rule has no '{name}': each has a name and a sentence")
        said = {name: self._value(name, value) for name, value in nodes.items()}
        usable = {name: value for name, value in said.items() if value is not None and name != _HOLD}
        rule = msgspec.convert({**msgspec.structs.asdict(base or _BLANK), **usable}, Rule)
        if "name" in usable:
            self._once(rule.name, nodes["name"])
        # Of what is missing, or wrong as it stands, all has been told.
        told = {*missing, *(said.keys() - usable.keys()), *(["name"] if is_unknown else [])}
        for fault in faults(rule, built_in=self._built_in or base is not None):
            if fault.field not in told:
                self._wrong_field(nodes.get(fault.field, node), fault)
        if said.get(_HOLD) is not None:
            rule = self._held(rule, str(said[_HOLD]), nodes[_HOLD])
        return rule if len(self.troubles) == before else None

    def _base(self, node: Node | None) -> Rule | None:
        """The built-in rule of this name, of which a file says what is to be otherwise."""
        name = node.value if isinstance(node, ScalarNode) else ""
        if node is not None and self._pack and name.startswith(PACK_PREFIX) and name not in self._pack:
            meant = nearest(name, self._pack)
            advice = f'did you mean "{meant}"?' if meant else f'a rule of your own does not begin with "{PACK_PREFIX}"'
            self._wrong(node, f"'name' is that of no built-in rule, got \"{name:.60}\": {advice}")
        return self._pack.get(name)

    def _held(self, rule: Rule, text: str, node: Node) -> Rule:
        """``rule`` with what stands beside its sentence in it, as it is where either cannot be read."""
        hold, expression = None, None
        with suppress(SentenceError):
            expression = parse(rule.when)
        if expression is not None and expression.hold is not None:
            self._wrong(node, f"'{_HOLD}' is said in the sentence too: say it once")
            return rule
        with suppress(SentenceError):
            hold = parse_duration(text)
        if hold is None:
            self._wrong(node, f'\'{_HOLD}\' must be a duration such as "50 steps" or "30s", got "{text:.40}"')
        if hold is None or expression is None:
            return rule
        return msgspec.structs.replace(rule, when=render(msgspec.structs.replace(expression, hold=hold)))

    def _once(self, name: str, node: Node) -> None:
        if name in self._names:
            self._wrong(node, f"'name' must be one of its own, got \"{name}\" as on line {self._names[name]}")
        self._names.setdefault(name, _line(node))

    def _fields(self, node: Node, what: str, known: Sequence[str]) -> dict[str, Node]:
        """The values of a mapping by their keys, each known and there once."""
        if not isinstance(node, MappingNode):
            self._wrong(node, f"expected {what} with {', '.join(known[:2])} ..., got {_called(node)}")
            return {}
        said: dict[str, Node] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, ScalarNode) else ""
            if name not in known:
                meant = nearest(name, known)
                advice = f"did you mean '{meant}'?" if meant else f"there are {', '.join(known)}"
                self._wrong(key, f"{what} has no '{name:.40}': {advice}")
            elif name in said:
                self._wrong(key, f"'{name}' is there twice, first on line {_line(said[name])}")
            else:
                said[name] = value
        return said

    def _value(self, name: str, node: Node) -> object:
        """What is said of a field, None where that is wrong."""
        if name == "channels":
            return self._texts(name, node)
        if not isinstance(node, ScalarNode):
            self._wrong(node, f"'{name}' must be a text, got {_called(node)}")
            return None
        if name == "enabled":
            return self._one_of(name, node, _TRUTHS)
        return self._one_of(name, node, _SEVERITIES) if name == "severity" else node.value

    def _texts(self, name: str, node: Node) -> tuple[str, ...] | None:
        if not isinstance(node, SequenceNode) or not all(isinstance(one, ScalarNode) for one in node.value):
            self._wrong(node, f"'{name}' must be a list of names, such as [slack, mail], got {_called(node)}")
            return None
        return tuple(one.value for one in node.value)

    def _one_of(self, name: str, node: ScalarNode, known: Mapping[str, Known]) -> Known | None:
        if node.value in known:
            return known[node.value]
        meant = nearest(node.value, known)
        advice = f": did you mean {meant}?" if meant else ""
        self._wrong(node, f"'{name}' must be one of {', '.join(known)}, got \"{node.value:.40}\"{advice}")
        return None

    def _wrong_field(self, node: Node, fault: Fault) -> None:
        self.troubles.append(Trouble(_line(node, fault), f"'{fault.field}' {fault.message}"))

    def _wrong(self, node: Node, message: str) -> None:
        self.troubles.append(Trouble(_line(node), message))


def _line(node: Node, fault: Fault | None = None) -> int:
    """Where ``node`` begins, or the line of it that is at fault where its lines are kept as they are."""
    begins: int = node.start_mark.line + 1
    if fault is not None and fault.place is not None and isinstance(node, ScalarNode) and node.style == "|":
        return begins + fault.place.line
    return begins


def _called(node: Node) -> str:
    if isinstance(node, ScalarNode):
        return f'"{node.value:.40}"' if node.value else "nothing"
    return "a list" if isinstance(node, SequenceNode) else "fields"
