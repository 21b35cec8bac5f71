"""A rule tried on the past says what it would have said live."""

from __future__ import annotations

import numpy as np
from scalescope_server.rules.alert import Alert, State, Transition
from scalescope_server.rules.backtest import Firing, backtest
from scalescope_server.rules.compiled import Compiled, compile_rule
from scalescope_server.rules.spec import Rule
from scalescope_server.rules.stretch import Stretch, Told, stretch_of
from scalescope_server.rules.ticks import Pulse, Tick
from scalescope_server.rules.watch import Watch


def rule(sentence: str) -> Compiled:
    return compile_rule(Rule("a rule", sentence))


def scales(*values: float, seconds_apart: float = 10.0) -> list[Tick]:
    return [Tick(0, step, seconds_apart * step, {"scale": value}) for step, value in enumerate(values)]


def test_each_firing_is_told_with_its_beginning_its_end_and_its_value() -> None:
    past = stretch_of(scales(8, 2, 1, 8, 8, 1, 1))
    found = backtest(rule("when scale < 4 for 2 steps"), [past])
    assert found.firings == (
        Firing(1, 2, 20.0, held_step=1, value=1.0, culprit=None, until_step=3, until_at=30.0),
        Firing(2, 6, 60.0, held_step=5, value=1.0, culprit=None, until_step=None, until_at=None),
    )
    assert (found.updates, found.last_step, found.last_at) == (7, 6, 60.0)
    assert found.alert.state is State.FIRING


def test_it_says_the_same_however_the_past_is_cut() -> None:
    updates = scales(8, 2, 1, 8, 8, 1, 1, 8, 1)
    whole = backtest(rule("when scale < 4 for 2 steps"), [stretch_of(updates)])
    cut = [stretch_of(updates[:2]), stretch_of([]), stretch_of(updates[2:6]), stretch_of(updates[6:])]
    assert backtest(rule("when scale < 4 for 2 steps"), cut) == whole


def test_a_firing_that_is_interrupted_is_one() -> None:
    updates = [Tick(0, step, float(step), {"loss": loss}) for step, loss in enumerate([9.0, None, None, 9.0, 1.0])]
    found = backtest(rule("when last(loss, 1 step) > 5"), [stretch_of(updates)])
    assert [(firing.step, firing.until_step) for firing in found.firings] == [(0, 4)]


def test_a_rule_that_does_not_parse_says_why() -> None:
    found = backtest(rule("when scale <"), [stretch_of(scales(1, 1))])
    assert found.firings == ()
    assert found.error
    assert found.alert.state is State.ERROR


def test_without_a_past_nothing_is_said() -> None:
    found = backtest(rule("when scale < 4"), [])
    assert (found.firings, found.updates, found.last_step, found.alert) == ((), 0, None, Alert())


def test_time_passes_between_stored_updates_as_it_did() -> None:
    times = [0.0, 10.0, 700.0, 710.0, 2000.0]
    past = stretch_of([Tick(0, step, at, {}) for step, at in enumerate(times)])
    found = backtest(rule("when no update for 10 min"), [past])
    assert [(firing.at, firing.until_step) for firing in found.firings] == [(610.0, 2), (1310.0, 4)]
    longer = backtest(rule("when no update for 10 min for 5 min"), [past])
    assert [(firing.at, firing.until_step) for firing in longer.firings] == [(1610.0, 4)]
    cut = backtest(rule("when no update for 10 min"), [past.part(0, 2), past.part(2, 5)])
    assert cut == found


def test_what_has_passed_since_the_last_update_counts_unless_the_run_has_finished() -> None:
    past = stretch_of([Tick(0, 0, 0.0, {})])
    silent = backtest(rule("when no update for 10 min"), [past], now=Pulse(900.0, 0.0, "silent"))
    assert [firing.at for firing in silent.firings] == [600.0]
    assert backtest(rule("when no update for 10 min"), [past], now=Pulse(900.0, 0.0, "finished")).firings == ()


def test_a_rule_on_layers_names_the_culprit() -> None:
    updates = [
        Tick(0, step, float(step), {}, {"subnormal_share": {"a": 0.1, "b": share}} if step % 2 == 0 else {})
        for step, share in enumerate([0.1, 0.0, 0.5, 0.0, 0.1])
    ]
    found = backtest(rule("when max by layer(subnormal_share) > 20%"), [stretch_of(updates)])
    assert found.firings == (Firing(1, 2, 2.0, 2, 0.5, "b", 4, 4.0),)


def test_it_is_what_judging_live_says() -> None:
    random = np.random.default_rng(5)
    values, skipped = random.lognormal(size=400), (random.random(400) < 0.2).astype(np.float64)
    always = np.ones(400, np.bool_)
    past = Stretch(
        np.zeros(400, np.int64),
        np.arange(400),
        np.arange(0.0, 200.0, 0.5),
        {"grad_norm": Told(values, always), "skipped": Told(skipped, always)},
    )
    chosen = rule(
        "when grad_norm > 2 * median(grad_norm, 50 steps) or skipped in 3 of 5 updates keep firing for 3 steps"
    )
    live: list[Transition] = []

    def hear(_: int, alert: Alert, transition: Transition) -> Alert:
        live.append(transition)
        return alert

    watch = Watch([chosen])
    for tick in past.ticks():
        watch.tick(tick, hear)
    found = backtest(chosen, [past.part(start, start + 64) for start in range(0, 400, 64)])
    begun = [move for move in live if move.after is State.FIRING and move.before in (State.QUIET, State.NO_DATA)]
    ended = [move for move in live if move.after is State.RESOLVED]
    assert len(begun) > 20
    assert [(f.step, f.value) for f in found.firings] == [(move.step, move.value) for move in begun]
    assert [f.until_step for f in found.firings if f.until_step is not None] == [move.step for move in ended]
    assert found.alert == watch.alerts[0]
