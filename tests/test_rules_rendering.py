"""A tree has one sentence, and the sentence one tree."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from scalescope_server.rules.expression import Duration, Expression, Seconds, Updates
from scalescope_server.rules.parsing import parse, parse_duration
from scalescope_server.rules.rendering import duration_text, render

from tests.sentences import durations, expressions


@settings(max_examples=150, deadline=None)
@given(expressions)
def test_a_sentence_written_from_a_tree_is_read_as_that_tree(expression: Expression) -> None:
    assert parse(render(expression)) == expression


@settings(max_examples=30, deadline=None)
@given(expressions)
def test_a_tree_is_stored_and_read_again(expression: Expression) -> None:
    assert msgspec.json.decode(msgspec.json.encode(expression), type=Expression) == expression


@given(durations)
def test_a_duration_is_read_as_it_is_written(duration: Duration) -> None:
    assert parse_duration(duration_text(duration)) == duration


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (Updates(1), "1 step"),
        (Updates(50), "50 steps"),
        (Seconds(30), "30 s"),
        (Seconds(90), "90 s"),
        (Seconds(300), "5 min"),
        (Seconds(1.5), "1.5 s"),
        (Seconds(7200), "2 h"),
        (Seconds(172_800), "2 d"),
    ],
)
def test_a_duration_is_told_in_the_largest_unit_that_fits(duration: Duration, text: str) -> None:
    assert duration_text(duration) == text


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("scale<1", "when scale < 1"),
        ("when  (scale) < 0.50", "when scale < 0.5"),
        ("scale < 2^-24 for 30 seconds", "when scale < 2^-24 for 30 s"),
        ("scale < 5.960464477539063e-08", "when scale < 2^-24"),
        ("flush_share > 7%", "when flush_share > 7%"),
        ("flush_share > 12.50%", "when flush_share > 12.5%"),
        ("step_ms > 0.5 s", "when step_ms > 500 ms"),
        ("step_ms > 120000", "when step_ms > 120000"),
        ("step_ms > 120000 ms", "when step_ms > 2 min"),
        ("skipped in 8 of the last 10 steps", "when skipped in 8 of 10 updates"),
        ("not (loss is not finite)", "when loss is finite"),
        ("not run is silent", "when run is not silent"),
        ("(scale < 1 and skipped) or loss > 3", "when scale < 1 and skipped or loss > 3"),
        ("scale < 1 and (skipped or loss > 3)", "when scale < 1 and (skipped or loss > 3)"),
        ("loss - (grad_norm - 1) > -3", "when loss - (grad_norm - 1) > -3"),
        ('"val/loss" > 1 and "loss2" > 1', 'when "val/loss" > 1 and loss2 > 1'),
        (
            'min by module(forward_headroom{module!="lm_head"}) < 1',
            'when min by module(forward_headroom{module!="lm_head"}) < 1',
        ),
    ],
)
def test_a_sentence_has_one_canonical_form(written: str, canonical: str) -> None:
    assert render(parse(written)) == canonical
    assert render(parse(canonical)) == canonical
