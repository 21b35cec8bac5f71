"""Names stand in the order in which a model tells them, however they come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scalescope_server.rules.compiled import compile_rule
from scalescope_server.rules.evaluating import Evaluator
from scalescope_server.rules.keys import merged
from scalescope_server.rules.spec import Rule
from scalescope_server.rules.stretch import stretch_of
from scalescope_server.rules.ticks import Tick

MODEL = ("h.2.weight", "h.10.weight", "head.weight", "a.weight")
some = st.lists(st.booleans(), min_size=len(MODEL), max_size=len(MODEL)).map(
    lambda chosen: tuple(name for name, taken in zip(MODEL, chosen, strict=True) if taken)
)


@given(some)
def test_what_a_model_has_more_is_put_where_it_tells_it(told: tuple[str, ...]) -> None:
    assert merged(told, MODEL) == MODEL
    assert merged(MODEL, told) is MODEL
    assert merged(told, told) is told


@given(some, some)
def test_all_of_both_are_there_once_in_the_order_of_the_newest(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    found = merged(one, other)
    assert sorted(found) == sorted({*one, *other})
    assert [name for name in found if name in other] == list(other)


def test_names_that_nobody_told_together_stand_by_name() -> None:
    assert merged(("b", "d"), ("a", "c")) == ("a", "b", "c", "d")
    assert merged(("x", "b"), ("a", "x")) == ("a", "x", "b")


def test_a_model_that_tells_another_order_is_followed() -> None:
    assert merged(("a", "b", "c"), ("c", "a")) == ("c", "a", "b")


def test_of_layers_that_are_alike_the_first_of_the_model_is_named() -> None:
    told = [Tick(0, step, float(step), {}, {"zero_share": dict.fromkeys(MODEL, 1.0)}) for step in range(3)]
    for sentence in ("when max by layer(zero_share) >= 100%", "when count by layer(zero_share >= 100%) > 0"):
        condition = compile_rule(Rule("a rule", sentence)).condition
        assert condition is not None
        one_by_one, at_once = Evaluator([condition]), Evaluator([condition])
        for tick in told:
            one_by_one.tick(tick)
        at_once.stretch(stretch_of(told))
        assert one_by_one.verdict(0).culprit == at_once.verdict(0, 2).culprit == "h.2.weight"
