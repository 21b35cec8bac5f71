"""A rule tried on the past says what it would have said live."""

from __future__ import annotations

import numpy as np
from scalescope_server.rules.alert import Alert, State, Transition
from scalescope_server.rules.backtest import Firing, backtest
from scalescope_server.rules.compiled import Compiled, compile_rule
from scalescope_server.rules.course import Start
from scalescope_server.rules.spec import Rule
from scalescope_server.rules.stretch import Stretch, Told, stretch_of
from scalescope_server.rules.ticks import Tick
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


def one(*times: float, segment: int = 0, first: int = 0) -> Stretch:
    """Updates of one start at these times, at a scale of 1."""
    return stretch_of([Tick(segment, first + step, at, {"scale": 1.0}) for step, at in enumerate(times)])


def tried(sentence: str, *past: Stretch, starts: list[Start], until: float = 10_000.0) -> list[tuple[float, ...]]:
    """When it fired and was resolved, of each firing."""
    found = backtest(rule(sentence), past, starts=starts, silent_after_s=60.0, until=until)
    return [(f.at,) if f.until_at is None else (f.at, f.until_at) for f in found.firings]


def test_a_run_that_has_finished_is_late_with_nothing_and_what_fires_ends_with_it() -> None:
    finished = [Start(0, 0.0, heard_at=900.0, ending="finished", ended_at=900.0)]
    assert tried("when no update for 20 min", one(0.0), starts=finished) == []
    assert tried("when no update for 10 min", one(0.0), starts=finished) == [(600.0, 900.0)]
    assert tried("when scale == 1", one(5.0), starts=finished) == [(5.0, 900.0)]
    assert tried("when scale == 1 for 20 min", one(5.0), starts=finished) == []
    assert tried("when run is silent", one(0.0), starts=finished) == []
    assert tried("when run is finished", one(0.0), starts=finished) == [(900.0, 900.0)]


def test_a_run_falls_silent_so_long_after_its_last_sign_of_life() -> None:
    dead = [Start(0, 0.0, heard_at=100.0)]
    assert tried("when run is silent", one(0.0), starts=dead) == [(160.0,)]
    assert tried("when run is silent for 5 min", one(0.0), starts=dead) == [(460.0,)]
    assert tried("when run is silent for 5 min", one(0.0), starts=dead, until=459.0) == []
    assert tried("when no update for 2 min and run is running", one(0.0), starts=dead) == [(120.0, 160.0)]
    assert tried("when run is running for 90 s", one(10.0), starts=dead) == [(90.0, 160.0)]


def test_a_crash_is_told_when_it_came_and_what_is_kept_firing_is_resolved_by_time_alone() -> None:
    crashed = [Start(0, 0.0, heard_at=50.0, ending="crashed", ended_at=50.0)]
    assert tried("when run is crashed", one(0.0), starts=crashed) == [(50.0,)]
    again = [*crashed, Start(1, 80.0, heard_at=100.0)]
    later = one(90.0, 95.0, segment=1, first=1)
    assert tried("when run is crashed", one(0.0), later, starts=again, until=100.0) == [(50.0, 80.0)]
    kept = "when run is crashed keep firing for 2 min"
    assert tried(kept, one(0.0), later, starts=again, until=199.0) == [(50.0,)]
    assert tried(kept, one(0.0), later, starts=again, until=200.0) == [(50.0, 200.0)]


def test_before_its_first_update_a_new_start_is_not_late_with_one() -> None:
    starts = [Start(0, 0.0, heard_at=0.0), Start(1, 5_000.0, heard_at=6_000.0)]
    again = one(6_000.0, segment=1, first=1)
    assert tried("when no update for 10 min and run is running", one(0.0), again, starts=starts, until=6_000.0) == []
    assert tried("when run is silent", one(0.0), again, starts=starts, until=6_000.0) == [(60.0, 5_000.0)]
    soon = [Start(0, 0.0, heard_at=0.0), Start(1, 30.0, heard_at=6_000.0)]
    assert tried("when run is silent", one(0.0), again, starts=soon, until=6_000.0) == []


def test_a_rule_fires_anew_after_a_start_that_finished() -> None:
    starts = [Start(0, 0.0, 10.0, "finished", 10.0), Start(1, 20.0, 30.0)]
    past = one(5.0), one(25.0, segment=1, first=1)
    assert tried("when scale == 1", *past, starts=starts, until=30.0) == [(5.0, 10.0), (25.0,)]


def test_a_moment_that_floats_cannot_tell_is_not_missed() -> None:
    for at in np.random.default_rng(1).uniform(1.7e9, 1.8e9, 200).tolist():
        assert len(tried("when no update for 0.7 s", one(at), starts=[Start(0, at, at)], until=at + 5.0)) == 1


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
