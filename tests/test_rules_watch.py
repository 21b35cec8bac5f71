"""The rules of a run with their alerts: what moves, and that it moves alike however updates come."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from scalescope_server.rules.alert import Alert, State, Terms, Transition
from scalescope_server.rules.compiled import Compiled, compile_rule
from scalescope_server.rules.dependence import lookback, needs
from scalescope_server.rules.expression import Condition, Duration, Seconds, Updates
from scalescope_server.rules.spec import Rule
from scalescope_server.rules.stretch import stretch_of
from scalescope_server.rules.ticks import Pulse, Tick
from scalescope_server.rules.watch import Watch

from tests.random_rules import any_condition, of_run, ticks

patience: st.SearchStrategy[Duration | None] = st.sampled_from([None, Updates(2), Updates(4), Seconds(2.0)])


@st.composite
def rules(draw: st.DrawFn, condition: st.SearchStrategy[Condition]) -> Compiled:
    chosen = draw(condition)
    terms = Terms(draw(patience), draw(patience))
    return Compiled("a rule", chosen, terms, needs=needs(chosen), lookback=lookback(chosen))


class Heard:
    """Keeps what a watch tells."""

    def __init__(self) -> None:
        self.moves: list[tuple[int, Transition]] = []

    def __call__(self, index: int, alert: Alert, transition: Transition) -> Alert:
        self.moves.append((index, transition))
        return alert

    def of(self, index: int) -> list[Transition]:
        return [move for at, move in self.moves if at == index]


def told(*sentences: str, keep_firing: str = "", cooldown: str = "") -> list[Compiled]:
    return [
        compile_rule(Rule(f"rule {index}", sentence, keep_firing=keep_firing, cooldown=cooldown))
        for index, sentence in enumerate(sentences)
    ]


def course(heard: Heard, index: int = 0) -> str:
    return ", ".join(f"{move.after.value}@{move.step}" for move in heard.of(index))


@settings(max_examples=60, deadline=None)
@given(rules(of_run) | rules(any_condition), ticks(), st.lists(st.integers(1, 15)))
def test_by_columns_alerts_move_as_they_do_update_by_update(
    rule: Compiled, updates: list[Tick], lengths: list[int]
) -> None:
    slow, fast, one_by_one, at_once = Watch([rule]), Watch([rule], few_updates=2), Heard(), Heard()
    for tick in updates:
        slow.tick(tick, one_by_one)
    start = 0
    for length in [*lengths, len(updates)]:
        fast.stretch(stretch_of(updates[start : start + length]), at_once)
        start += length
    # NaN is unequal to itself, and what is compared may be NaN.
    assert repr(at_once.moves) == repr(one_by_one.moves)
    assert repr(fast.alerts) == repr(slow.alerts)


@settings(max_examples=60, deadline=None)
@given(rules(any_condition), ticks(), st.data())
def test_a_watch_that_was_stored_and_restored_goes_on_as_if_it_never_had_been(
    rule: Compiled, updates: list[Tick], data: st.DataObject
) -> None:
    stopped = data.draw(st.integers(0, len(updates) - 1)) + 1
    whole, heard, again = Watch([rule]), Heard(), Heard()
    for tick in updates[:stopped]:
        whole.tick(tick, heard)
    restored = Watch([rule], whole.alerts)
    restored.replay(stretch_of(updates[:stopped]))
    heard.moves.clear()
    for tick in updates[stopped:]:
        whole.tick(tick, heard)
        restored.tick(tick, again)
    assert repr(again.moves) == repr(heard.moves)
    assert repr(restored.alerts) == repr(whole.alerts)


def test_rules_move_each_for_itself() -> None:
    watch, heard = Watch(told("when scale < 4", "when scale < 2 for 2 steps", "when own_series > 1")), Heard()
    for step, scale in enumerate([8.0, 2.0, 1.0, 1.0, 8.0]):
        watch.tick(Tick(0, step, float(step), {"scale": scale}), heard)
    assert course(heard, 0) == "firing@1, resolved@4"
    assert course(heard, 1) == "pending@2, firing@3, resolved@4"
    assert [alert.firing for alert in watch.alerts][:2] == [1, 1]


def test_a_rule_that_does_not_parse_is_an_error_and_leaves_the_others_alone() -> None:
    watch, heard = Watch(told("when scale <", "when scale < 4")), Heard()
    for step in range(3):
        watch.tick(Tick(0, step, float(step), {"scale": 1.0}), heard)
    assert course(heard, 0) == "error@0"
    assert heard.of(0)[0].sentence.startswith("line 1, column")
    assert course(heard, 1) == "firing@0"
    by_columns, moved = Watch(told("when scale <")), Heard()
    by_columns.stretch(stretch_of([Tick(0, 0, 0.0, {"scale": 1.0})]), moved)
    assert course(moved) == "error@0"


def test_a_series_that_is_not_told_is_no_data_and_never_fires() -> None:
    watch, heard = Watch(told("when scale < 4")), Heard()
    for step in range(3):
        watch.tick(Tick(0, step, float(step), {"loss": 1.0}), heard)
    assert course(heard) == "no data@0"


def test_time_moves_only_the_rules_that_ask_for_it() -> None:
    watch, heard = Watch(told("when no update for 10 s", "when scale < 4 for 5 s")), Heard()
    watch.tick(Tick(0, 7, 100.0, {"scale": 1.0}), heard)
    for at in (105.0, 110.0, 115.0):
        watch.pulse(Pulse(at, 100.0, "running"), heard)
    assert [(move.after, move.step, move.at) for move in heard.of(0)] == [(State.FIRING, None, 110.0)]
    assert course(heard, 1) == "pending@7"
    watch.tick(Tick(0, 8, 116.0, {"scale": 1.0}), heard)
    assert course(heard, 0) == "firing@None, resolved@8"
    assert course(heard, 1) == "pending@7, firing@8"


def test_who_hears_of_a_move_decides_what_the_alert_remembers_of_it() -> None:
    def hear(_: int, alert: Alert, __: Transition) -> Alert:
        return Alert(alert.state, told=alert.firing, firing=alert.firing, is_open=alert.is_open)

    watch = Watch(told("when scale < 4"))
    watch.tick(Tick(0, 0, 0.0, {"scale": 1.0}), hear)
    assert (watch.alerts[0].firing, watch.alerts[0].told) == (1, 1)


def test_a_replay_moves_nothing() -> None:
    watch = Watch(told("when scale < 4"))
    watch.replay(stretch_of([Tick(0, 0, 0.0, {"scale": 1.0})]))
    assert watch.alerts == [Alert()]


def test_durations_beside_the_sentence_count_where_it_says_none() -> None:
    (beside,) = told("when scale < 4", keep_firing="3 steps", cooldown="5 min")
    assert (beside.terms, beside.cooldown) == (Terms(None, Updates(3)), Seconds(300.0))
    (within,) = told("when scale < 4 for 2 steps keep firing for 4 steps", keep_firing="3 steps")
    assert within.terms == Terms(Updates(2), Updates(4))
