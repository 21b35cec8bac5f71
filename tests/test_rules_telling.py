"""What is told of an alert: each firing once, and its end; not while nobody is to hear of it."""

from __future__ import annotations

from scalescope_server.rules.alert import Alert, Terms, advance
from scalescope_server.rules.expression import Duration, Seconds, Updates
from scalescope_server.rules.telling import NO_HUSH, Hush, tell
from scalescope_server.rules.ticks import Tick
from scalescope_server.rules.verdict import Answer, Verdict

WORDS = {"ok": Answer.DOES_NOT, "bad": Answer.HOLDS, "none": Answer.NO_DATA, "error": Answer.ERROR}


def told(verdicts: str, hush: Hush = NO_HUSH, cooldown: Duration | None = None) -> str:
    """What is told at each of the updates, which are ten seconds apart."""
    alert, said = Alert(), []
    for step, word in enumerate(verdicts.split()):
        at = 10.0 * step
        alert, _ = advance(alert, Verdict(WORDS[word]), Tick(0, step, at, {}), Terms())
        alert, happened = tell(alert, step, at, hush=hush, cooldown=cooldown)
        said.append(happened or "-")
    return " ".join(said)


def test_a_firing_and_its_end_are_told_once() -> None:
    assert told("ok bad bad ok ok bad") == "- fired - resolved - fired"


def test_an_interruption_is_not_told() -> None:
    assert told("bad none bad error ok none") == "fired - - - resolved -"


def test_within_the_cool_down_no_second_firing_is_told_nor_its_end() -> None:
    assert told("bad ok bad ok bad ok", cooldown=Seconds(35)) == "fired resolved - - fired resolved"
    assert told("bad ok bad ok bad ok", cooldown=Updates(4)) == "fired resolved - - fired resolved"


def test_a_firing_that_outlasts_the_cool_down_is_told_when_that_is_over() -> None:
    assert told("bad ok bad bad bad ok", cooldown=Updates(4)) == "fired resolved - - fired resolved"


def test_a_muted_alert_tells_nothing_and_what_is_on_afterwards_is_told() -> None:
    assert told("bad ok bad bad bad ok", Hush(muted_until=40)) == "- - - - fired resolved"


def test_a_silenced_project_is_told_nothing() -> None:
    assert told("bad bad ok", Hush(silenced_until=1e9)) == "- - -"


def test_the_end_of_a_firing_that_was_told_before_the_mute_is_not_told_later() -> None:
    alert, _ = advance(Alert(), Verdict(Answer.HOLDS), Tick(0, 0, 0.0, {}), Terms())
    alert, happened = tell(alert, 0, 0.0)
    assert happened == "fired"
    alert, _ = advance(alert, Verdict(Answer.DOES_NOT), Tick(0, 1, 1.0, {}), Terms())
    alert, happened = tell(alert, 1, 1.0, hush=Hush(muted_until=2.0))
    assert happened is None
    assert tell(alert, 2, 3.0) == (alert, None)


def test_whoever_has_acknowledged_a_firing_hears_of_its_end_and_of_the_next_one() -> None:
    alert, _ = advance(Alert(), Verdict(Answer.HOLDS), Tick(0, 0, 0.0, {}), Terms())
    acknowledged = Hush(acknowledged_at=5.0)
    assert tell(alert, 0, 0.0, hush=acknowledged)[1] is None
    alert, _ = tell(alert, 0, 0.0)
    alert, _ = advance(alert, Verdict(Answer.DOES_NOT), Tick(0, 1, 6.0, {}), Terms())
    alert, happened = tell(alert, 1, 6.0, hush=acknowledged)
    assert happened == "resolved"
    alert, _ = advance(alert, Verdict(Answer.HOLDS), Tick(0, 2, 7.0, {}), Terms())
    assert tell(alert, 2, 7.0, hush=acknowledged)[1] == "fired"
