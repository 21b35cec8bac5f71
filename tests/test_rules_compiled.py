"""Rules made ready to be evaluated: each sentence once."""

from __future__ import annotations

from scalescope_server.rules.alert import Terms
from scalescope_server.rules.compiled import compile_rule
from scalescope_server.rules.expression import Updates
from scalescope_server.rules.spec import Rule


def test_a_sentence_is_compiled_once_whoever_asks() -> None:
    one, other = (compile_rule(Rule(name, "when changes(scale, 77 steps) >= 6", severity="info")) for name in "ab")
    assert (one.name, other.name) == ("a", "b")
    assert one.condition is other.condition


def test_what_stands_beside_a_sentence_makes_another_rule() -> None:
    plain = compile_rule(Rule("a", "when scale < 1"))
    keeping = compile_rule(Rule("a", "when scale < 1", keep_firing="5 steps"))
    assert (plain.terms, keeping.terms) == (Terms(), Terms(None, Updates(5)))


def test_what_cannot_be_evaluated_says_why() -> None:
    assert "expected a value" in compile_rule(Rule("a", "when scale <")).error
    assert compile_rule(Rule("a", "when scale < 1", cooldown="soon")).condition is None
