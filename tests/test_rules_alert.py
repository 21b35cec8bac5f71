"""The states of an alert as timelines: a verdict and a state for each update."""

from __future__ import annotations

import msgspec
import pytest
from scalescope_server.rules.alert import Alert, State, Terms, Transition, advance, is_settled
from scalescope_server.rules.expression import Duration, Seconds, Updates
from scalescope_server.rules.ticks import Pulse, Tick
from scalescope_server.rules.verdict import Answer, Verdict

WORDS = {
    "ok": Verdict(Answer.DOES_NOT),
    "bad": Verdict(Answer.HOLDS, 7.0, "layer.weight"),
    "none": Verdict(Answer.NO_DATA),
    "error": Verdict(Answer.ERROR, sentence="no such series"),
}
STATES = {State.NO_DATA: "none"}
SECONDS_APART = 10.0
NEW = Alert()


def run(
    verdicts: str, hold: Duration | None = None, keep_firing: Duration | None = None, alert: Alert = NEW
) -> tuple[list[Alert], list[Transition]]:
    """The alert after each verdict, one update every ten seconds."""
    alerts: list[Alert] = []
    transitions: list[Transition] = []
    for step, word in enumerate(verdicts.split()):
        tick = Tick(0, step, SECONDS_APART * step, {})
        alert, moves = advance(alert, WORDS[word], tick, Terms(hold, keep_firing))
        alerts.append(alert)
        transitions.extend(moves)
    return alerts, transitions


def look(verdicts: str, hold: Duration | None = None, keep_firing: Duration | None = None) -> str:
    alerts, _ = run(verdicts, hold, keep_firing)
    return " ".join(STATES.get(alert.state, alert.state.value) for alert in alerts)


def moves(verdicts: str, hold: Duration | None = None, keep_firing: Duration | None = None) -> str:
    _, transitions = run(verdicts, hold, keep_firing)
    return ", ".join(f"{move.before.value} > {move.after.value} {move.firing}@{move.step}" for move in transitions)


def test_it_fires_at_once_without_a_for() -> None:
    assert look("ok bad bad ok") == "quiet firing firing quiet"


def test_it_fires_at_the_last_of_as_many_updates_as_it_waits_for() -> None:
    assert look("ok ok bad bad bad ok", Updates(3)) == "quiet quiet pending pending firing quiet"
    assert look("bad bad", Updates(1)) == "firing firing"


def test_it_waits_by_time() -> None:
    assert look("ok bad bad bad bad", Seconds(30)) == "quiet pending pending pending firing"


def test_what_was_pending_begins_anew_after_an_update_at_which_it_did_not_hold() -> None:
    assert look("bad bad ok bad bad bad", Updates(3)) == "pending pending quiet pending pending firing"
    assert look("bad ok bad bad", Seconds(10)) == "pending quiet pending firing"


@pytest.mark.parametrize("gap", ["none", "error"])
def test_what_was_pending_begins_anew_after_an_update_without_an_answer(gap: str) -> None:
    assert look(f"bad bad {gap} bad bad bad", Updates(3)) == f"pending pending {gap} pending pending firing"


@pytest.mark.parametrize("gap", ["none", "error"])
def test_no_answer_never_fires_nor_is_it_quiet(gap: str) -> None:
    assert look(f"{gap} {gap} ok {gap} bad {gap}") == f"{gap} {gap} quiet {gap} firing {gap}"


@pytest.mark.parametrize("gap", ["none", "error"])
def test_a_firing_that_is_interrupted_goes_on_under_its_number(gap: str) -> None:
    assert look(f"bad {gap} bad ok") == f"firing {gap} firing quiet"
    alerts, _ = run(f"bad {gap} bad ok bad")
    assert [alert.firing for alert in alerts] == [1, 1, 1, 1, 2]
    assert [alert.is_open for alert in alerts] == [True, True, True, False, True]


@pytest.mark.parametrize("gap", ["none", "error"])
def test_a_firing_that_is_interrupted_is_resolved_by_the_next_answer(gap: str) -> None:
    named = {"none": "no data", "error": "error"}[gap]
    assert moves(f"bad {gap} ok") == f"quiet > firing 1@0, firing > {named} 1@1, {named} > resolved 1@2"


def test_it_keeps_firing_through_short_recoveries() -> None:
    assert look("bad ok ok bad ok ok ok", None, Updates(3)) == (
        "firing recovering recovering firing recovering recovering quiet"
    )


def test_it_keeps_firing_for_a_time() -> None:
    assert look("bad ok ok ok ok", None, Seconds(30)) == "firing recovering recovering recovering quiet"


def test_a_recovery_without_an_answer_begins_anew() -> None:
    assert look("bad ok none ok ok ok", None, Updates(3)) == "firing recovering none recovering recovering quiet"


def test_a_firing_that_goes_on_after_a_recovery_keeps_its_number() -> None:
    assert moves("bad ok bad ok ok bad", None, Updates(2)) == (
        "quiet > firing 1@0, firing > recovering 1@1, recovering > firing 1@2, firing > recovering 1@3, "
        "recovering > resolved 1@4, quiet > firing 2@5"
    )


def test_every_move_is_told_with_where_it_came_from() -> None:
    assert moves("ok bad bad ok none ok error ok", Updates(2)) == (
        "quiet > pending 0@1, pending > firing 1@2, firing > resolved 1@3, "
        "quiet > no data 0@4, no data > quiet 0@5, quiet > error 0@6, error > quiet 0@7"
    )


def test_pending_that_does_not_last_is_told_to_be_quiet_again() -> None:
    assert moves("bad ok", Updates(2)) == "quiet > pending 0@0, pending > quiet 0@1"


def test_a_firing_has_the_evidence_of_the_update_at_which_it_began() -> None:
    alerts, transitions = run("bad bad ok", Updates(2))
    fired, resolved = transitions[1], transitions[2]
    assert (fired.value, fired.culprit, fired.step, fired.at) == (7.0, "layer.weight", 1, 10.0)
    assert (resolved.value, resolved.culprit) == (7.0, "layer.weight")
    assert (alerts[1].held_step, alerts[1].fired_step, alerts[1].fired_at) == (0, 1, 10.0)


def test_a_quiet_alert_that_loses_its_data_tells_no_evidence_of_an_older_firing() -> None:
    _, transitions = run("bad ok none")
    assert (transitions[-1].value, transitions[-1].culprit, transitions[-1].firing) == (None, None, 0)


def test_an_error_says_why_as_long_as_it_is_one() -> None:
    alerts, transitions = run("error ok")
    assert [alert.sentence for alert in alerts] == ["no such series", ""]
    assert [move.sentence for move in transitions] == ["no such series", ""]


def test_time_alone_makes_it_fire_and_counts_no_update() -> None:
    terms = Terms(Updates(2))
    alert, (move,) = advance(NEW, WORDS["bad"], Pulse(5.0, 0.0, "silent"), Terms(None))
    assert (alert.state, move.step, move.at) == (State.FIRING, None, 5.0)
    alert, _ = advance(NEW, WORDS["bad"], Pulse(5.0, 0.0, "silent"), terms)
    alert, _ = advance(alert, WORDS["bad"], Pulse(6.0, 0.0, "silent"), terms)
    assert (alert.state, alert.counted) == (State.PENDING, 0)


def test_it_is_settled_where_the_same_answer_changes_nothing() -> None:
    for verdicts in ("ok", "bad", "none", "error"):
        (alert,), _ = run(verdicts)
        assert is_settled(alert, WORDS[verdicts].answer)
        assert run(verdicts, alert=alert)[0] == [alert]
    (pending,), _ = run("bad", Updates(2))
    assert not is_settled(pending, Answer.HOLDS)


def test_a_stored_alert_goes_on_as_if_it_had_never_been_stored() -> None:
    words = "ok bad bad bad none bad ok ok bad ok ok ok error bad bad bad"
    expected, _ = run(words, Updates(2), Updates(3))
    alert = NEW
    for step, word in enumerate(words.split()):
        alert = msgspec.msgpack.decode(msgspec.msgpack.encode(alert), type=Alert)
        tick = Tick(0, step, SECONDS_APART * step, {})
        alert, _ = advance(alert, WORDS[word], tick, Terms(Updates(2), Updates(3)))
        assert alert == expected[step]
