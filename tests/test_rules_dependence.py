"""What rules are fed with, and how far back they reach."""

from __future__ import annotations

import pytest
from scalescope_server.rules.compiled import Compiled, compile_rule
from scalescope_server.rules.dependence import Lookback, Needs, silences
from scalescope_server.rules.expression import MOST_UPDATES
from scalescope_server.rules.signals.signal import HOLD_UPDATES
from scalescope_server.rules.spec import Rule

# So many updates at most make two windows of time, each with the one before its first.
OF_TIME = 2 * (MOST_UPDATES + 1)


def rule(sentence: str) -> Compiled:
    found = compile_rule(Rule("a rule", sentence))
    assert not found.error
    return found


def test_it_says_what_has_to_be_read_for_it() -> None:
    sentence = "when loss > 2 * median(loss, 50 steps) and skipped in 3 of 5 updates or perplexity > 9"
    assert rule(sentence).needs == Needs(series=frozenset({"loss", "skipped", "perplexity"}))
    assert rule("when max by layer(amax * scale) > 1").needs == Needs(
        series=frozenset({"scale"}), measures=frozenset({"amax"})
    )
    assert rule("when count by rank(skipped) > 1").needs == Needs(ranks=frozenset({"skipped"}))
    assert rule("when rank disagreement(scale)").needs == Needs(ranks=frozenset({"scale"}))
    assert rule("when finding(SCALE_ZERO)").needs == Needs(findings=True)
    assert rule("when no update for 10 min and run is running").needs == Needs(pulses=True)


@pytest.mark.parametrize(
    ("sentence", "back"),
    [
        ("when finding(SCALE_ZERO)", Lookback()),
        # A value holds for so long.
        ("when scale < 1", Lookback(HOLD_UPDATES, 0.0, 1)),
        # A window that ended where the value was told last, which is still in the window.
        ("when changes(scale, 200 steps) >= 6", Lookback(400, 0.0, 1)),
        ("when mean(loss, 5 min) > 2", Lookback(0, 600.0, 1, OF_TIME)),
        ("when skipped in 8 of 10 updates", Lookback(20, 0.0, 1)),
        ("when loss > 4 * median(loss, 500 steps)", Lookback(HOLD_UPDATES, 0.0, 1)),
        ("when mean(loss, 50 steps) > mean(loss, 5 min)", Lookback(100, 600.0, 1, OF_TIME)),
        # What enters the window rests on a value that may have been told before it.
        ("when mean(loss / tokens, 50 steps) > 2", Lookback(HOLD_UPDATES, 0.0, 2)),
    ],
)
def test_it_reaches_back_as_far_as_its_windows(sentence: str, back: Lookback) -> None:
    assert rule(sentence).lookback == back


def test_it_says_for_how_long_a_silence_it_asks() -> None:
    condition = rule("when no update for 10 min or no update for 30 s and loss > 1").condition
    assert condition is not None
    assert silences(condition) == {600.0, 30.0}
