"""Rules through the real judge and a real store: states, restarts, take-overs, changes under way."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing

import pytest
from scalescope_server.judge_findings import Weighing
from scalescope_server.judge_pass import Outcome, judge
from scalescope_server.rules.ticks import Pulse
from scalescope_server.store.alert_records import Committed
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.records import RunId
from scalescope_server.watching.book import rule_of
from scalescope_server.watching.keeper import Keeper
from scalescope_server.watching.trials import try_rule
from sqlalchemy import event

from tests.batches import batch, hello, histograms
from tests.watched import RUN, Clock, Training, add_rule, change_rule, look, moves, outbox, state_of, timeline

pytestmark = pytest.mark.both_engines


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with closing(open_store(database, clock=Clock())) as opened:
        yield opened


@pytest.fixture
def keeper(store: Store) -> Keeper:
    return Keeper(store.reader, Clock())


def test_a_timeline_goes_through_every_state(store: Store, keeper: Keeper) -> None:
    add_rule(store, "when scale < 1 for 2 steps keep firing for 2 steps")
    scales = [2.0, 0.5, 2.0, 0.5, 0.5, 2.0, 0.5, 2.0, 2.0, 2.0]
    assert timeline(store, scales, lambda: keeper) == [
        *("quiet", "pending", "quiet", "pending", "firing", "recovering", "firing", "recovering", "quiet", "quiet")
    ]
    assert moves(store) == [
        *(("pending", 1), ("quiet", 2), ("pending", 3), ("firing", 4)),
        *(("recovering", 5), ("firing", 6), ("recovering", 7), ("resolved", 8)),
    ]


def test_a_series_that_was_never_told_is_no_data_and_never_fires(store: Store, keeper: Keeper) -> None:
    add_rule(store, "when loss > 3")
    training = Training(store)
    training.tell(1.0, 1.0)
    look(store, keeper)
    assert state_of(store) == "no data"
    training.tell(1.0, loss=[5.0])
    look(store, keeper)
    assert state_of(store) == "firing"


def test_a_rule_that_cannot_be_read_is_an_error_and_the_others_are_judged(store: Store, keeper: Keeper) -> None:
    add_rule(store, "when scale <", name="broken")
    add_rule(store, "when scale < 1")
    Training(store).tell(0.5)
    look(store, keeper)
    assert (state_of(store, "broken"), state_of(store)) == ("error", "firing")
    (broken,) = [each.alert for each in store.reader.alerts()[0] if each.alert.name == "broken"]
    assert "expected a value" in broken.sentence


def test_a_server_without_rules_stores_nothing_of_them_and_rules_added_later_say_nothing_of_the_past(
    store: Store, keeper: Keeper
) -> None:
    training = Training(store)
    training.tell(*[0.5] * 5, 2.0)
    look(store, keeper)
    assert store.reader.vigil(RUN).position is None
    add_rule(store, "when scale < 1")
    look(store, keeper)
    training.tell(2.0, 2.0)
    look(store, keeper)
    assert moves(store) == []
    assert store.reader.vigil(RUN).position == (0, 7)
    training.tell(0.5)
    look(store, keeper)
    assert moves(store) == [("firing", 8)]


def test_an_added_rule_knows_what_its_window_reaches_back_to(store: Store, keeper: Keeper) -> None:
    training = Training(store)
    training.tell(*[1.0, 2.0] * 4)
    look(store, keeper)
    add_rule(store, "when changes(scale, 8 steps) >= 6")
    training.tell(2.0)
    look(store, keeper)
    assert moves(store) == [("firing", 8)]


def test_a_changed_rule_lets_its_alert_end_and_begins_anew(store: Store, keeper: Keeper) -> None:
    mine = add_rule(store, "when scale < 1", channels=("ops",))
    training = Training(store)
    training.tell(0.5)
    look(store, keeper)
    change_rule(store, mine, when="when scale < 1 for 2 steps")
    assert state_of(store) == "quiet"
    training.tell(0.5, 0.5)
    look(store, keeper)
    assert moves(store) == [("firing", 0), ("resolved", None), ("pending", 1), ("firing", 2)]
    assert [(happened, firing) for happened, firing, _, _ in outbox(store)] == [
        *(("fired", 1), ("resolved", 1), ("fired", 2))
    ]


def test_every_channel_of_a_rule_is_told_once_of_each_firing_and_its_end(store: Store, keeper: Keeper) -> None:
    add_rule(store, "when scale < 1", channels=("ops", "mail"))
    training = Training(store)
    training.tell(0.5, 0.5, 2.0, 0.5)
    look(store, keeper)
    assert outbox(store) == [
        *(("fired", 1, "ops", "waiting"), ("fired", 1, "mail", "waiting")),
        *(("resolved", 1, "ops", "waiting"), ("resolved", 1, "mail", "waiting")),
        *(("fired", 2, "ops", "waiting"), ("fired", 2, "mail", "waiting")),
    ]


def test_who_has_acknowledged_hears_of_the_end_alone_and_who_mutes_hears_nothing(store: Store) -> None:
    clock = Clock()
    keeper = Keeper(store.reader, clock)
    add_rule(store, "when scale < 1", channels=("ops",))
    training = Training(store)
    training.tell(0.5)
    look(store, keeper)
    (found,), _ = store.reader.alerts()
    store.writer.acknowledge(found.alert.id, clock()).result()
    assert outbox(store) == [("fired", 1, "ops", "suppressed")]
    training.tell(2.0)
    look(store, keeper)
    store.writer.mute(found.alert.id, clock() + 60).result()
    training.tell(0.5, 2.0)
    look(store, keeper)
    assert [line[:2] for line in outbox(store)] == [("fired", 1), ("resolved", 1)]
    training.tell(0.5)
    look(store, keeper)
    clock.seconds += 61
    training.tell(0.5)
    look(store, keeper)
    assert [line[:2] for line in outbox(store)] == [("fired", 1), ("resolved", 1), ("fired", 3)]


def test_of_a_silenced_project_nothing_is_told_until_the_silence_is_over(store: Store) -> None:
    clock = Clock()
    keeper = Keeper(store.reader, clock)
    add_rule(store, "when scale < 1", channels=("ops",))
    store.writer.silence("proj*", clock() - 1, clock() + 60, "a move", clock()).result()
    training = Training(store)
    training.tell(0.5)
    look(store, keeper)
    assert (state_of(store), outbox(store)) == ("firing", [])
    clock.seconds += 61
    training.tell(0.5)
    look(store, keeper)
    assert outbox(store) == [("fired", 1, "ops", "waiting")]


def test_what_another_server_said_while_no_update_came_is_known_to_who_judges_again(store: Store) -> None:
    add_rule(store, "when scale < 1 or no update for 10 s", channels=("ops",))
    training, keeper = Training(store), Keeper(store.reader, Clock())
    training.tell(2.0)
    fence = store.writer.claim(RUN, "one").result().fence
    assert judge(store, RUN, fence, keeper).outcome is Outcome.DONE
    store.writer.release("one").result()
    fence = store.writer.claim(RUN, "other").result().fence
    vigil, other = store.reader.vigil(RUN), Keeper(store.reader, Clock())
    lookout = other.take(vigil, Weighing(store, RUN), fence)
    assert lookout is not None
    lookout.pass_time(Pulse(30.0, 0.0, "running"))
    assert store.writer.commit_watched(lookout.outcome(fence)).result() is Committed.DONE
    assert moves(store) == [("firing", None)]
    store.writer.release("other").result()
    fence = store.writer.claim(RUN, "one").result().fence
    training.tell(2.0)
    assert judge(store, RUN, fence, keeper).outcome is Outcome.DONE
    assert moves(store) == [("firing", None), ("resolved", 1)]
    assert [line[:2] for line in outbox(store)] == [("fired", 1), ("resolved", 1)]


def test_windows_of_rules_that_have_not_changed_stay_when_another_does(store: Store, keeper: Keeper) -> None:
    add_rule(store, "when changes(scale, 8 steps) >= 6", "windowed")
    other = add_rule(store, "when scale < 0.1")
    training = Training(store)
    training.tell(*[1.0, 2.0] * 4)
    look(store, keeper)
    change_rule(store, other, when="when loss > 3")
    read: list[str] = []
    event.listen(store._reading, "before_cursor_execute", lambda *given: read.append(given[2]))
    lookout = keeper.take(store.reader.vigil(RUN), Weighing(store, RUN), None)
    assert lookout is not None
    assert sorted(entry.rule.when for entry in lookout.entries) == [
        *("when changes(scale, 8 steps) >= 6", "when loss > 3")
    ]
    # Nothing is read again for the rule that stays.
    assert [statement for statement in read if "step.scale" in statement] == []
    training.tell(2.0)
    keeper.give_back(lookout)
    look(store, keeper)
    assert moves(store, "windowed") == [("firing", 6)]


@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_passes_and_the_restarts_between_them_the_alerts_are_the_same(store: Store, seed: int) -> None:
    """One run judged update by update, one in passes of any length by servers that are killed between them."""
    draw = random.Random(seed)
    add_rule(store, "when changes(scale, 6 steps) >= 3 for 2 steps keep firing for 3 steps", "windowed")
    add_rule(store, "when scale < 1 for 3 s", "timed")
    scales = [draw.choice([0.25, 0.5, 2.0, 4.0]) for _ in range(40)]
    whole, cut = Training(store, hello("whole", world_size=1)), Training(store, hello("cut", world_size=1))
    keeper, restarted = Keeper(store.reader, Clock()), Keeper(store.reader, Clock())
    for step, scale in enumerate(scales):
        whole.tell(scale)
        look(store, keeper, RunId("whole"))
        cut.tell(scale)
        if draw.random() < 0.4 or step == len(scales) - 1:
            look(store, restarted, RunId("cut"))
            restarted = Keeper(store.reader, Clock()) if draw.random() < 0.5 else restarted
    said = {
        (each.alert.run, each.alert.name): (each.alert.state, each.transitions) for each in store.reader.alerts()[0]
    }
    for name in ("windowed", "timed"):
        assert said[RunId("whole"), name] == said[RunId("cut"), name]
        assert len(said[RunId("whole"), name][1]) > 2


def test_who_was_superseded_says_nothing_and_the_successor_says_it_once(store: Store) -> None:
    add_rule(store, "when scale < 1 for 2 steps", channels=("ops",))
    training, keepers = Training(store), [Keeper(store.reader, Clock()) for _ in range(2)]
    fences = []
    for holder, keeper in zip(("one", "other"), keepers, strict=True):
        training.tell(0.5)
        fences.append(store.writer.claim(RUN, holder).result().fence)
        assert judge(store, RUN, fences[-1], keeper).outcome is Outcome.DONE
        store.writer.release(holder).result()
    training.tell(2.0, 0.5, 0.5)
    assert judge(store, RUN, fences[0], keepers[0]).outcome is Outcome.SUPERSEDED
    assert outbox(store) == [("fired", 1, "ops", "waiting")]
    assert judge(store, RUN, fences[1], keepers[1]).outcome is Outcome.DONE
    assert moves(store) == [("pending", 0), ("firing", 1), ("resolved", 2), ("pending", 3), ("firing", 4)]
    assert [line[:2] for line in outbox(store)] == [("fired", 1), ("resolved", 1), ("fired", 2)]


def test_updates_of_an_older_segment_that_come_late_are_no_news_to_rules(store: Store, keeper: Keeper) -> None:
    """Findings are judged anew; what fires on the past would be told to somebody who can do nothing about it."""
    add_rule(store, "when scale < 1", channels=("ops",))
    first, second = Training(store, hello(world_size=1)), Training(store, hello(segment="second", world_size=1))
    first.tell(2.0)
    second.tell(2.0, 2.0)
    look(store, keeper)
    first.tell(0.5, 0.5)
    look(store, keeper)
    second.tell(2.0)
    look(store, keeper)
    assert (moves(store), outbox(store)) == ([], [])


def test_ranks_are_waited_for_where_a_rule_looks_at_them(store: Store, keeper: Keeper) -> None:
    add_rule(store, "when rank disagreement(scale)")
    add_rule(store, "when scale < 1", "own")
    ranks = [Training(store, hello(rank=rank, world_size=2)) for rank in range(2)]
    ranks[1].tell(2.0)
    ranks[0].tell(2.0, 2.0)
    look(store, keeper)
    assert store.reader.vigil(RUN).position == (0, 0)
    ranks[1].tell(4.0)
    look(store, keeper)
    assert (state_of(store), state_of(store, "own")) == ("firing", "quiet")


def test_layers_are_seen_at_their_samples_and_name_the_culprit(store: Store, keeper: Keeper) -> None:
    add_rule(store, "when max by layer(amax) > 1e-3")
    training = Training(store)
    layout = training.say.layout(("w", "fp16"), ("b", "fp16"))
    store.writer.append(batch(training.hello, layout)).result()
    for exponents in ([0, 1], [0, 9]):
        sample = training.say.sample(training.step, histograms([exponents[0]], [exponents[1]]))
        store.writer.append(batch(training.hello, sample)).result()
        training.tell(65536.0, 65536.0)
        look(store, keeper)
    (found,) = [each.alert for each in store.reader.alerts()[0]]
    assert (found.state, found.culprit, found.value, found.since_step) == ("firing", "b", 2.0**9 / 65536, 2)


def test_a_finding_fires_at_the_update_at_which_it_opens(store: Store, keeper: Keeper) -> None:
    add_rule(store, "when finding(SCALE_COLLAPSE)")
    training = Training(store)
    scales = [2.0**-power for power in range(-4, 26)]
    training.tell(*[16.0] * 30, *scales, skipped=[0.0] * 30 + [1.0] * 30)
    look(store, keeper)
    cut = [step for state, step in moves(store) if state == "firing"]
    assert len(cut) == 1
    other = Training(store, hello("other", world_size=1))
    other.tell(*[16.0] * 30)
    for scale in scales:
        look(store, keeper, RunId("other"))
        other.tell(scale, skipped=[1.0])
    look(store, keeper, RunId("other"))
    alerts = {each.alert.run: each.transitions for each in store.reader.alerts()[0]}
    assert [moved.step for moved in alerts[RunId("other")] if moved.after == "firing"] == cut


def steps_of_firings(store: Store, run: RunId, name: str = "mine") -> list[int | None]:
    found = [each.transitions for each in store.reader.alerts(run=run)[0] if each.alert.name == name]
    return [moved.step for moved in reversed(found[0]) if moved.after == "firing"] if found else []


@pytest.mark.parametrize("restarts", [False, True])
def test_rules_that_wait_for_ranks_see_the_findings_of_the_updates_that_waited(store: Store, restarts: bool) -> None:
    """Findings do not wait for ranks where nothing is skipped: here rank 1 tells later what rank 0 has told."""
    add_rule(store, "when finding(SCALE_RUNAWAY) or rank disagreement(scale)")
    add_rule(store, "when finding(SCALE_RUNAWAY) in 11 of 20 updates", "windowed")
    rising, late, keeper = [2.0 ** (40 + step) for step in range(36)], 12, Keeper(store.reader, Clock())
    whole = Training(store, hello("whole", world_size=1))
    whole.tell(*rising)
    look(store, keeper, RunId("whole"))
    one, other = (Training(store, hello("ranks", rank=rank, world_size=2)) for rank in range(2))
    for at in range(0, len(rising) + late, 4):
        for rank, ends in ((one, at), (other, at - late)):
            if 0 <= ends < len(rising):
                rank.tell(*rising[ends : ends + 4])
        if restarts:
            keeper = Keeper(store.reader, Clock())
        look(store, keeper, RunId("ranks"))
    for name, step in (("mine", 20), ("windowed", 30)):
        assert steps_of_firings(store, RunId("whole"), name) == [step]
        assert steps_of_firings(store, RunId("ranks"), name) == [step]
        rule = next(rule for rule in store.reader.rule_book().rules if rule.name == name)
        for trial in try_rule(store.reader, rule_of(rule), [RunId("whole"), RunId("ranks")], None, Clock()):
            assert [firing.step for firing in trial.found.firings] == [step]
