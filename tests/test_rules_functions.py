"""Every function of the language as a timeline: what was told at each update, and what the sentence says of it.

``!`` it holds, ``-`` it does not, ``.`` no data.
"""

from __future__ import annotations

import pytest
from scalescope_server.rules.compiled import compile_rule
from scalescope_server.rules.evaluating import Evaluator
from scalescope_server.rules.spec import Rule
from scalescope_server.rules.ticks import Pulse, Tick
from scalescope_server.rules.verdict import Answer

SIGNS = {Answer.HOLDS: "!", Answer.DOES_NOT: "-", Answer.NO_DATA: "."}


def evaluator(sentence: str) -> Evaluator:
    rule = compile_rule(Rule("a rule", sentence))
    assert rule.condition is not None, rule.error
    return Evaluator([rule.condition])


def say(sentence: str, told: str, name: str = "loss", seconds_apart: float = 1.0) -> str:
    """What it says at each update that told the next word of ``told``: a number, or ``_`` for nothing."""
    evaluating = evaluator(sentence)
    signs = []
    for step, word in enumerate(told.split()):
        values = {} if word == "_" else {name: float(word)}
        evaluating.tick(Tick(0, step, seconds_apart * step, values))
        signs.append(SIGNS[evaluating.verdict(0).answer])
    return "".join(signs)


@pytest.mark.parametrize(
    ("sentence", "told", "said"),
    [
        ("when loss > 2", "1 3 _ nan inf 2 -inf", "-!!-!--"),
        ("when loss is not finite", "1 nan _ inf 1 -inf", "-!!!-!"),
        ("when last(loss, 2 steps) > 2", "_ 3 _ _ 1 nan", ".!!.--"),
        ("when max(loss, 4 steps) > 2", "1 3 1 1 1 1", ".!!!!-"),
        ("when max(loss, 4 steps) < 2", "1 1 1 3 nan 1 1 1", ".!!----!"),
        ("when min(loss, 4 steps) < 1", "2 0 2 2 2 2", ".!!!!-"),
        ("when mean(loss, 4 steps) > 2", "9 1 1 1 inf 1 4 8", ".!!!---!"),
        ("when sum(loss, 4 steps) >= 3", "1 1 1 0 0 0", ".-!!--"),
        ("when median(loss, 4 steps) > 2", "9 1 1 1 4 9 9", ".!---!!"),
        ("when quantile(loss, 75%, 5 steps) >= 4", "0 1 2 3 4 4 4", "..---!!"),
        ("when change(loss, 3 steps) > 1", "1 2 3 4 4 4", ".-!!--"),
        ("when changes(loss, 4 steps) >= 2", "8 8 4 8 4 4 4 4", ".--!!!--"),
        ("when reversals(loss, 5 steps) >= 2", "1 2 2 1 2 3 4 5 6", "..--!----"),
        ("when zscore(loss, 4 steps) > 3", "1 2 1 9 1 2 1", "..-!---"),
        ("when abs(change(loss, 2 steps)) >= 2", "1 1 3 1 1", ".-!!-"),
        ("when log2(loss) < 4", "16 8 0 -1 32", "-!!--"),
        ("when loss / 0 > 5", "1 -1 0", "!--"),
        ("when loss > 2 * median(loss, 4 steps)", "1 1 1 3 3 3 9", ".--!--!"),
        ("when count(loss > 2, 4 steps) >= 2", "3 3 _ 1 1 1 1", ".!!!---"),
        ("when rate(loss > 2, 4 steps) > 50%", "3 3 1 _ 1 3 3 3", ".!!!--!!"),
        ("when loss > 2 in 2 of 3 updates", "3 3 1 1 3 1 3", ".!!---!"),
        ("when loss > 2 * 3", "5 7 7 5", "-!!-"),
        ("when 1 < 2 and loss > 2", "1 3 3 _ 1", "-!!!-"),
        ("when not loss > 2", "3 1 _", "-!!"),
        ("when loss > 2 or loss < 0", "1 3 -1", "-!!"),
        ("when loss > 2 and loss < 4", "1 3 5", "-!-"),
    ],
)
def test_a_function_over_a_series(sentence: str, told: str, said: str) -> None:
    assert say(sentence, told) == said


def test_a_window_of_time_goes_by_when_updates_came() -> None:
    assert say("when mean(loss, 4 s) > 2", "9 1 1 1 1", seconds_apart=2.0) == ".!---"
    assert say("when sum(loss, 1 min) >= 6", "1 1 1 1 1 1 1", seconds_apart=10.0) == "...--!!"
    assert say("when rate(tokens, 10 s) >= 50", "90 100 100 100 200", "tokens", seconds_apart=2.0) == "...!!"


def test_the_rate_of_a_window_of_updates_is_by_time_too() -> None:
    assert say("when rate(tokens, 3 steps) >= 50", "9 100 100 99 100", "tokens", seconds_apart=2.0) == ".!!--"


def test_a_value_that_is_told_now_and_then_is_held_and_enters_a_window_once() -> None:
    assert say("when loss > 2", "3 _ _ 1 _") == "!!!--"
    assert say("when count(loss > 2, 4 steps) >= 2", "3 _ _ 3 _ _ _") == "...!!!!"


def test_steps_that_nobody_told_of_count() -> None:
    evaluating = evaluator("when max(loss, 4 steps) > 2")
    said = ""
    for step, loss in ((0, 1.0), (1, 3.0), (5, 1.0), (6, 1.0)):
        evaluating.tick(Tick(0, step, float(step), {"loss": loss}))
        said += SIGNS[evaluating.verdict(0).answer]
    assert said == ".!.-"


def test_a_window_goes_on_over_a_resume() -> None:
    evaluating = evaluator("when changes(scale, 4 steps) >= 2")
    said = ""
    for segment, step, scale in ((0, 0, 8.0), (0, 1, 8.0), (1, 2, 64.0), (1, 3, 32.0)):
        evaluating.tick(Tick(segment, step, float(step), {"scale": scale}))
        said += SIGNS[evaluating.verdict(0).answer]
    assert said == ".--!"


def test_a_series_that_was_never_told_is_no_data() -> None:
    assert say("when scale < 1", "1 2 3", "loss") == "..."


def test_a_finding_is_open_or_it_is_not() -> None:
    evaluating = evaluator("when finding(SCALE_THRASH)")
    evaluating.tick(Tick(0, 0, 0.0, {}))
    assert evaluating.verdict(0).answer is Answer.DOES_NOT
    evaluating.tick(Tick(0, 1, 0.0, {}, findings=frozenset(["SCALE_THRASH"])))
    verdict = evaluating.verdict(0)
    assert (verdict.answer, verdict.culprit) == (Answer.HOLDS, "SCALE_THRASH")


def test_findings_are_known_from_the_first_update_on_together_as_alone() -> None:
    evaluating = evaluator("when not (finding(SCALE_THRASH) or finding(SCALE_ZERO))")
    for step in range(2):
        evaluating.tick(Tick(0, step, 0.0, {}))
        assert evaluating.verdict(0).answer is Answer.HOLDS


def layers(sentence: str, *samples: dict[str, float] | None, measure: str = "subnormal_share") -> list[object]:
    """What it says at each update, with its value and culprit where it holds."""
    evaluating = evaluator(sentence)
    said: list[object] = []
    for step, sample in enumerate(samples):
        evaluating.tick(Tick(0, step, float(step), {}, {} if sample is None else {measure: sample}))
        verdict = evaluating.verdict(0)
        holds = verdict.answer is Answer.HOLDS
        said.append((verdict.value, verdict.culprit) if holds else SIGNS[verdict.answer])
    return said


def test_a_condition_on_layers_is_evaluated_at_samples_and_holds_between_them() -> None:
    sentence = "when max by layer(subnormal_share) > 20%"
    assert layers(sentence, None, {"a": 0.1, "b": 0.3}, None, {"a": 0.1, "b": 0.2}, None) == [
        *(".", (0.3, "b"), (0.3, "b"), "-", "-")
    ]


def test_layers_are_chosen_by_name() -> None:
    sentence = 'when max by layer(subnormal_share{layer="blocks.*"}) > 20%'
    assert layers(sentence, {"head": 0.9, "blocks.0": 0.1}, {"head": 0.9, "blocks.0": 0.4}) == ["-", (0.4, "blocks.0")]


def test_each_layer_is_held_against_its_own_past() -> None:
    sentence = "when max by layer(subnormal_share / median(subnormal_share, 4 steps)) > 2"
    usual = {"small": 0.01, "large": 0.5}
    assert layers(sentence, usual, usual, usual, usual | {"small": 0.05}) == [".", "-", "-", (5.0, "small")]


def test_it_is_counted_for_how_many_layers_a_condition_holds() -> None:
    sentence = "when count by layer(subnormal_share > 20%) >= 2"
    assert layers(sentence, {"a": 0.3, "b": 0.1}, {"a": 0.1, "b": 0.3, "c": 0.9}) == ["-", (2.0, "b")]


def test_what_is_no_number_is_no_layers_largest() -> None:
    sentence = "when max by layer(subnormal_share) > 20%"
    assert layers(sentence, {"a": float("nan"), "b": 0.3}, {"a": float("nan")}) == [(0.3, "b"), "."]


def test_ranks_disagree_and_the_one_apart_is_named() -> None:
    evaluating = evaluator("when rank disagreement(scale)")
    said = []
    for step, told in enumerate(({0: 8.0}, {0: 8.0, 1: 8.0, 2: 8.0}, {0: 8.0, 1: 4.0, 2: 8.0}, {0: 4.0, 1: 4.0})):
        evaluating.tick(Tick(0, step, float(step), {}, ranks={"scale": told}))
        verdict = evaluating.verdict(0)
        said.append((SIGNS[verdict.answer], verdict.culprit if verdict.answer is Answer.HOLDS else None))
    assert said == [(".", None), ("-", None), ("!", 1), ("-", None)]


def test_it_is_counted_at_how_many_ranks_an_update_was_skipped() -> None:
    evaluating = evaluator("when count by rank(skipped) >= 2")
    said = ""
    for step, told in enumerate(({0: 1.0, 1: 0.0}, {0: 1.0, 1: 1.0}, {})):
        evaluating.tick(Tick(0, step, float(step), {}, ranks={"skipped": told}))
        said += SIGNS[evaluating.verdict(0).answer]
    assert said == "-!!"


def test_no_update_is_told_by_time_and_not_of_a_run_that_has_finished() -> None:
    evaluating = evaluator("when no update for 10 min")
    evaluating.pulse(Pulse(1000.0, None, "running"))
    assert evaluating.verdict(0).answer is Answer.NO_DATA
    evaluating.tick(Tick(0, 0, 1000.0, {}))
    assert evaluating.verdict(0).answer is Answer.DOES_NOT
    evaluating.pulse(Pulse(1599.0, 1000.0, "silent"))
    assert evaluating.verdict(0).answer is Answer.DOES_NOT
    evaluating.pulse(Pulse(1600.0, 1000.0, "silent"))
    assert (evaluating.verdict(0).answer, evaluating.verdict(0).value) == (Answer.HOLDS, 600.0)
    evaluating.pulse(Pulse(9000.0, 1000.0, "finished"))
    assert evaluating.verdict(0).answer is Answer.DOES_NOT


def test_time_alone_fills_no_window() -> None:
    evaluating = evaluator("when no update for 10 s or count(skipped, 3 steps) >= 2")
    evaluating.tick(Tick(0, 0, 0.0, {"skipped": 1.0}))
    for at in (1.0, 2.0, 3.0):
        evaluating.pulse(Pulse(at, 0.0, "running"))
    assert evaluating.verdict(0).answer is not Answer.HOLDS
    evaluating.pulse(Pulse(10.0, 0.0, "running"))
    assert evaluating.verdict(0).answer is Answer.HOLDS


def test_what_was_compared_is_the_evidence() -> None:
    evaluating = evaluator("when skipped or 5 < loss")
    evaluating.tick(Tick(0, 0, 0.0, {"loss": 7.0, "skipped": 0.0}))
    assert evaluating.verdict(0).value == 7.0


def test_what_rules_have_in_common_is_worked_out_once() -> None:
    sentences = [f"when changes(scale, 200 steps) >= {n}" for n in range(1, 11)]
    conditions = [compile_rule(Rule("a rule", sentence)).condition for sentence in sentences]
    evaluating = Evaluator([condition for condition in conditions if condition is not None])
    # The series, the reach of the window, the function; and of each rule its number and its comparison.
    assert evaluating.size == 3 + 2 * 10
