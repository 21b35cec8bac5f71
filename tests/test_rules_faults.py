"""What is wrong with a rule that a form or a call of the API sends: by field, and where in it."""

from __future__ import annotations

import pytest
from scalescope_server.delivery.messages import fill
from scalescope_server.rules.faults import PLACES, Fault, faults
from scalescope_server.rules.spec import Rule

from tests.notices import notice


def test_a_rule_that_can_be_used_has_no_faults() -> None:
    assert faults(Rule("a", "when scale < 1", keep_firing="5 min", cooldown="1 h", text="{run}: {value}")) == []


def test_a_fault_of_the_sentence_has_its_place() -> None:
    (fault,) = faults(Rule("a", "when sclae < 1"))
    assert fault.field == "when"
    assert fault.place is not None
    assert (fault.place.start, fault.place.end) == (5, 10)
    assert faults(Rule("a", 'when "sclae" < 1')) == []


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (Rule("", "skipped"), "name"),
        (Rule("a\nb", "skipped"), "name"),
        (Rule("a" * 101, "skipped"), "name"),
        (Rule("pack/a", "skipped"), "name"),
        (Rule("a", "skipped keep firing for 5 s", keep_firing="5 s"), "keep_firing"),
        (Rule("a", "skipped", keep_firing="soon"), "keep_firing"),
        (Rule("a", "skipped", cooldown="5"), "cooldown"),
        (Rule("a", "skipped", project=""), "project"),
        (Rule("a", "skipped", tag="x" * 101), "tag"),
        (Rule("a", "skipped", text="{vaule}"), "text"),
        (Rule("a", "skipped", text="x" * 2001), "text"),
        (Rule("a", "skipped", channels=("",)), "channels"),
    ],
)
def test_each_field_is_looked_at(rule: Rule, field: str) -> None:
    assert [fault.field for fault in faults(rule)] == [field]


def test_only_built_in_rules_are_called_so() -> None:
    assert faults(Rule("pack/a", "skipped"), built_in=True) == []


def test_text_in_braces_that_is_no_place_is_left_alone() -> None:
    assert faults(Rule("a", "skipped", text='{"json": {}}')) == []
    assert faults(Rule("a", "skipped", text="{Value}")) == [
        Fault("text", 'has no "{Value}" to be filled in: did you mean "{value}"?')
    ]


def test_every_place_is_filled_in_where_it_is_told() -> None:
    for place in PLACES:
        assert fill(f"{{{place}}}", notice()) != f"{{{place}}}"
