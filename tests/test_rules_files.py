"""Files of rules: each fault with its line, and what is written is read again."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scalescope_server.rules.files import RulesFileError, read_rules, write_rules
from scalescope_server.rules.rendering import render
from scalescope_server.rules.spec import Rule

from tests.sentences import expressions

FILE = """\
# What our team wants to hear of.
version: 3
rules:
  - name: thrash
    when: changes(scale, 200 steps) >= 6
    for: 50 steps
    severity: critical
    keep_firing: 5 min
    project: on          # a project may be called so
    tag: "7b-*"
    text: "{run}: the scale went to {scale}"
    channels: [slack, "mail"]
    cooldown: 1 h
    reason: it cost us a week
  - {name: spike, when: 'loss > 3 * median(loss, 200 steps)', enabled: no}
"""


def test_a_file_is_read() -> None:
    found = read_rules(FILE)
    assert found.version == 3
    assert found.rules == (
        Rule(
            name="thrash",
            when="when changes(scale, 200 steps) >= 6 for 50 steps",
            severity="critical",
            keep_firing="5 min",
            project="on",
            tag="7b-*",
            text="{run}: the scale went to {scale}",
            channels=("slack", "mail"),
            cooldown="1 h",
            reason="it cost us a week",
        ),
        Rule(name="spike", when="loss > 3 * median(loss, 200 steps)", enabled=False),
    )


SKIPED = (
    'expected a name of a series, got "skiped": did you mean "skipped"? '
    'A series of your own that is called so: "skiped"'
)


def told(text: str) -> list[str]:
    with pytest.raises(RulesFileError) as caught:
        read_rules(text)
    return str(caught.value).splitlines()


def a_rule(*lines: str) -> str:
    """A file whose only rule ends with ``lines``, the first of them on line 4."""
    return "\n    ".join(["rules:\n  - name: a\n    when: scale < 1", *lines])


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", ['rules.yaml:1: expected "rules:" and a list of rules, got nothing']),
        ("- name: a", ["rules.yaml:1: expected a file of rules with version, rules ..., got a list"]),
        ("rules:\n  a: 1", ['rules.yaml:2: "rules" must be a list: begin each rule with "- name: ..."']),
        ("rules: []\nrule: []", ["rules.yaml:2: a file of rules has no 'rule': did you mean 'rules'?"]),
        ("version: new\nrules: []", ["rules.yaml:1: 'version' must be a whole number, such as 1"]),
        ("rules: [a", ["rules.yaml:1: is no YAML: expected ',' or ']', but got '<stream end>'"]),
        ("rules: []\n---\nrules: []", ["rules.yaml:2: holds another document: write all rules in one list"]),
        (
            "rules:\n  - &a {name: a, when: skipped}\n  - *a",
            ['rules.yaml:3: "*a" stands for something written elsewhere: write it out, each rule by itself'],
        ),
        ("[" * 100_000, ["rules.yaml:1: is nested too deeply to be a file of rules"]),
        ("#" * 1_000_001, ["rules.yaml:1: expected at most 1,000,000 characters, got 1,000,001"]),
        ("rules:" + "\n- {}" * 2001, ["rules.yaml:2002: expected at most 2,000 rules in a file, got 2,001"]),
        ("rules:\n  - soon", ['rules.yaml:2: expected a rule with name, when ..., got "soon"']),
        ("rules:\n  - name: a", ["rules.yaml:2: the rule has no 'when': each has a name and a sentence"]),
        (a_rule("for: soon"), ['rules.yaml:4: \'for\' must be a duration such as "50 steps" or "30s", got "soon"']),
        (
            a_rule("cooldown: 5", "keep_firing: 5 stps"),
            [
                'rules.yaml:4: \'cooldown\' must be a duration such as "50 steps" or "30s", got "5"',
                'rules.yaml:5: \'keep_firing\' must be a duration such as "50 steps" or "30s", got "5 stps"',
            ],
        ),
        (
            "rules:\n  - name: a\n    when: skiped\n    for: soon\n    severity: warn\n    foo: 1\n    cooldown: 5",
            [
                f"rules.yaml:3: 'when' at column 1: {SKIPED}",
                'rules.yaml:4: \'for\' must be a duration such as "50 steps" or "30s", got "soon"',
                "rules.yaml:5: 'severity' must be one of info, warning, critical, got \"warn\": did you mean warning?",
                "rules.yaml:6: a rule has no 'foo': did you mean 'for'?",
                'rules.yaml:7: \'cooldown\' must be a duration such as "50 steps" or "30s", got "5"',
            ],
        ),
        (
            "rules:\n  - when: skipped\n    for: [soon]\n    cooldown: 5",
            [
                "rules.yaml:2: the rule has no 'name': each has a name and a sentence",
                "rules.yaml:3: 'for' must be a text, got a list",
                'rules.yaml:4: \'cooldown\' must be a duration such as "50 steps" or "30s", got "5"',
            ],
        ),
        (a_rule("wehn: scale < 1"), ["rules.yaml:4: a rule has no 'wehn': did you mean 'when'?"]),
        (a_rule("name: b"), ["rules.yaml:4: 'name' is there twice, first on line 2"]),
        (
            a_rule("severity: warn"),
            ["rules.yaml:4: 'severity' must be one of info, warning, critical, got \"warn\": did you mean warning?"],
        ),
        (
            a_rule("channels: mail"),
            ["rules.yaml:4: 'channels' must be a list of names, such as [slack, mail], got \"mail\""],
        ),
        (a_rule("channels: ['']"), ["rules.yaml:4: 'channels' must be names of channels, got \"\""]),
        (
            a_rule("project:"),
            ['rules.yaml:4: \'project\' must be a name or a glob of 1 to 100 characters, got "": "*" is all'],
        ),
        (a_rule("run: [a]"), ["rules.yaml:4: 'run' must be a text, got a list"]),
        (
            a_rule("text: '{culprot} {vaule}'"),
            [
                'rules.yaml:4: \'text\' has no "{culprot}" to be filled in: did you mean "{culprit}"?',
                'rules.yaml:4: \'text\' has no "{vaule}" to be filled in: did you mean "{value}"?',
            ],
        ),
        (
            a_rule("enabled: maybe"),
            ["rules.yaml:4: 'enabled' must be one of true, yes, on, false, no, off, got \"maybe\""],
        ),
        (
            "rules:\n  - {name: a, when: skipped}\n  - {name: pack/a, when: skipped}\n  - {name: a, when: skipped}",
            [
                "rules.yaml:3: 'name' must not begin with \"pack/\", which built-in rules do: call it otherwise",
                "rules.yaml:4: 'name' must be one of its own, got \"a\" as on line 2",
            ],
        ),
        (
            "rules:\n  - name: a\n    when: scale < 1 for 5 steps\n    for: 5 steps",
            ["rules.yaml:4: 'for' is said in the sentence too: say it once"],
        ),
        (
            "rules:\n  - name: a\n    when: |\n      scale < 1\n      and skiped\n  - {name: b, when: skiped}",
            [
                f"rules.yaml:5: 'when' at line 2, column 5: {SKIPED}",
                f"rules.yaml:6: 'when' at column 1: {SKIPED}",
            ],
        ),
    ],
)
def test_each_fault_is_told_with_its_line(text: str, faults: list[str]) -> None:
    assert told(text) == faults


def test_a_file_that_stands_for_billions_is_refused_as_it_is_written() -> None:
    lines = ["a: &a [lol]", *(f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in pairwise("abcdefghi"))]
    assert told("\n".join(lines)) == [
        'rules.yaml:2: "*a" stands for something written elsewhere: write it out, each rule by itself'
    ]


def test_a_file_is_told_by_its_own_name() -> None:
    with pytest.raises(RulesFileError, match=r"^team/fp16\.yaml:1: "):
        read_rules("", "team/fp16.yaml")


def test_no_object_is_made_of_a_file() -> None:
    assert read_rules("rules: !!python/object/apply:os.getcwd []").rules == ()
    (rule,) = read_rules("rules: [{name: !!python/name:os.system a, when: skipped}]").rules
    assert rule.name == "a"


_texts = st.text(max_size=20)
_names = st.text(min_size=1, max_size=20).filter(lambda text: text.strip() and text.isprintable())
_rules = st.builds(
    Rule,
    name=_names.filter(lambda name: not name.startswith("pack/")),
    when=expressions.map(render),
    severity=st.sampled_from(["info", "warning", "critical"]),
    cooldown=st.sampled_from(["", "50 steps", "5 min"]),
    project=_names,
    text=_texts,
    channels=st.lists(_names, max_size=2).map(tuple),
    reason=_texts,
    source=_texts,
    enabled=st.booleans(),
)


@st.composite
def _any_rule(draw: st.DrawFn) -> Rule:
    """One of them; its own name is short, where hypothesis would print all that it is made of."""
    return draw(_rules)


@settings(max_examples=40, deadline=None)
@given(st.lists(_any_rule(), max_size=3, unique_by=lambda rule: rule.name), st.integers(1, 99))
def test_what_is_written_is_read_again(rules: list[Rule], version: int) -> None:
    assert read_rules(write_rules(rules, version)) == (version, tuple(rules))


@pytest.mark.parametrize("sign", ["\x85", "\u2028", "\u2029", "\n", "\ufeff", "\x07"])
def test_signs_that_end_a_line_are_written_so_that_they_are_read_again(sign: str) -> None:
    rule = Rule("a", "when skipped", source=f"one{sign}\u00fc{sign}")
    assert read_rules(write_rules([rule])).rules == (rule,)


PACK = {
    "pack/a": Rule("pack/a", "when skipped", severity="critical", reason="why"),
    "pack/b": Rule("pack/b", "applied"),
}


def test_of_a_built_in_rule_a_file_says_what_is_to_be_otherwise() -> None:
    text = "rules:\n  - {name: pack/a, severity: warning, for: 2 steps}\n  - {name: pack/b}"
    rules = read_rules(text, pack=PACK).rules
    assert rules == (Rule("pack/a", "when skipped for 2 steps", reason="why"), PACK["pack/b"])
    for whole in (True, False):
        assert read_rules(write_rules(rules, pack=PACK, whole=whole), pack=PACK).rules == rules
    assert write_rules(rules[1:], pack=PACK, whole=False) == "version: 1\nrules:\n- name: pack/b\n"
    with pytest.raises(RulesFileError, match=r'no built-in rule, got "pack/c": did you mean "pack/'):
        read_rules("rules: [{name: pack/c}]", pack=PACK)
