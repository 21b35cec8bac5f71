"""Time that passes without an update, by the server's clock: what rules say of it, and when it cannot be believed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from scalescope.wire import Heartbeat
from scalescope_server.judge import Judge
from scalescope_server.judge_pass import Outcome
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.errors import NoRule
from scalescope_server.store.records import RunId

from tests.batches import STARTED_AT, hello
from tests.watched import Clock, Training, add_rule, moves, outbox, state_of

pytestmark = pytest.mark.both_engines

SILENT = "when no update for 10 min"


class Audience:
    def changed(self, run: RunId) -> None:
        pass


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(database: str, clock: Clock) -> Iterator[Store]:
    with closing(open_store(database, clock=clock)) as opened:
        yield opened


def judge_of(store: Store, clock: Clock, holder: str = "one") -> Judge:
    """One whose errands are run by the test."""
    return Judge(store, Audience(), holder=holder, clock=clock, now=clock, pack=False)


def pass_time(judge: Judge, clock: Clock, seconds: float, every_s: float = 10.0) -> None:
    """Look at silent runs again and again, as the judge's thread does."""
    ends = clock.seconds + seconds
    while clock.seconds < ends:
        clock.seconds = min(clock.seconds + every_s, ends)
        judge._pulse()


def take_up(judge: Judge) -> None:
    """Judge all that is committed."""
    judge._take_up_unjudged()
    while (run := judge._turns.take(judge._clock())) is not None:
        judge._judge(run)


def test_a_run_of_which_nothing_comes_for_long_enough_fires_once_until_something_comes(
    store: Store, clock: Clock
) -> None:
    add_rule(store, SILENT, channels=("ops",))
    judge, training = judge_of(store, clock), Training(store)
    training.tell(1.0, 1.0, at=clock())
    take_up(judge)
    pass_time(judge, clock, 590)
    assert state_of(store) == "quiet"
    pass_time(judge, clock, 600)
    assert state_of(store) == "firing"
    training.tell(1.0, at=clock())
    take_up(judge)
    assert state_of(store) == "quiet"
    assert [(after, step) for after, step in moves(store)] == [("firing", None), ("resolved", 2)]
    assert [line[:2] for line in outbox(store)] == [("fired", 1), ("resolved", 1)]


def test_a_run_that_has_finished_is_not_silent_and_one_that_crashed_says_so(store: Store, clock: Clock) -> None:
    add_rule(store, SILENT)
    add_rule(store, "when run is crashed", "crash")
    judge, training = judge_of(store, clock), Training(store)
    training.tell(1.0, at=clock())
    training.end("finished")
    take_up(judge)
    pass_time(judge, clock, 1200)
    assert (state_of(store), state_of(store, "crash")) == ("quiet", "quiet")


def test_what_fires_is_over_with_a_run_that_finishes_long_after_its_last_update(store: Store, clock: Clock) -> None:
    add_rule(store, "when scale == 1")
    judge, training = judge_of(store, clock), Training(store)
    training.tell(1.0, at=clock())
    take_up(judge)
    pass_time(judge, clock, 30)
    training.end("finished")
    judge.wake(RunId("run"))
    take_up(judge)
    assert moves(store) == [("firing", 0), ("resolved", 0)]


def test_a_start_that_has_told_no_update_is_not_late_because_the_one_before_is_long_ago(
    store: Store, clock: Clock
) -> None:
    add_rule(store, SILENT)
    judge, training = judge_of(store, clock), Training(store)
    training.tell(1.0, at=clock())
    training.end("finished")
    take_up(judge)
    clock.seconds += 3600
    again = hello(segment="second", world_size=1)
    for _ in range(5):
        clock.seconds += 10
        beat = Heartbeat(at=clock.seconds, step=None, progress_at=None, dropped=0, pending=0, sent_bytes=0)
        store.writer.heartbeat(again, beat, clock()).result()
        judge._pulse()
    assert moves(store) == []


def test_a_crash_is_told_as_soon_as_the_trainer_says_so(store: Store, clock: Clock) -> None:
    add_rule(store, "when run is crashed")
    judge, training = judge_of(store, clock), Training(store)
    training.tell(1.0, at=clock())
    take_up(judge)
    training.end("crashed")
    judge.wake(RunId("run"))
    take_up(judge)
    assert moves(store) == [("firing", None)]


def test_a_loop_that_stalls_is_silent_although_its_trainer_lives(store: Store, clock: Clock) -> None:
    add_rule(store, SILENT)
    judge, training = judge_of(store, clock), Training(store)
    training.tell(1.0, at=clock())
    take_up(judge)
    for _ in range(70):
        clock.seconds += 10
        ago = clock() - STARTED_AT
        beat = Heartbeat(at=5000.0 + ago, step=0, progress_at=5000.0, dropped=0, pending=0, sent_bytes=0)
        store.writer.heartbeat(training.hello, beat, clock()).result()
        judge._pulse()
    assert state_of(store) == "firing"


def test_while_the_server_was_down_no_run_was_silent(store: Store, clock: Clock) -> None:
    add_rule(store, SILENT)
    training = Training(store)
    training.tell(1.0, at=clock())
    take_up(judge_of(store, clock))
    clock.seconds += 3600
    judge = judge_of(store, clock)
    pass_time(judge, clock, 590)
    assert state_of(store) == "quiet"
    pass_time(judge, clock, 20)
    assert state_of(store) == "firing"


def test_an_alert_that_fired_when_the_server_went_down_goes_on_and_is_told_once(store: Store, clock: Clock) -> None:
    add_rule(store, SILENT, channels=("ops",))
    judge, training = judge_of(store, clock), Training(store)
    training.tell(1.0, at=clock())
    take_up(judge)
    pass_time(judge, clock, 700)
    assert state_of(store) == "firing"
    clock.seconds += 3600
    judge = judge_of(store, clock)
    pass_time(judge, clock, 1200)
    assert [line[:2] for line in outbox(store)] == [("fired", 1)]
    training.tell(1.0, at=clock())
    take_up(judge)
    assert [line[:2] for line in outbox(store)] == [("fired", 1), ("resolved", 1)]


def test_while_the_database_was_away_no_run_was_silent(store: Store, clock: Clock) -> None:
    add_rule(store, SILENT)
    judge, training = judge_of(store, clock), Training(store)
    training.tell(1.0, at=clock())
    take_up(judge)
    pass_time(judge, clock, 300)
    clock.seconds += 400
    judge._pulses.doubt()
    pass_time(judge, clock, 300)
    assert state_of(store) == "quiet"
    pass_time(judge, clock, 320)
    assert state_of(store) == "firing"


def test_a_clock_of_the_trainer_that_is_off_makes_nobody_silent(store: Store, clock: Clock) -> None:
    """Updates are told at seconds 0, 1, 2 by the trainer's clock, which is a quarter of an hour behind here."""
    add_rule(store, SILENT)
    add_rule(store, "when scale < 2 for 30 s", "timed")
    judge, training = judge_of(store, clock), Training(store)
    training.tell(1.0, at=clock())
    take_up(judge)
    pass_time(judge, clock, 20)
    training.tell(1.0, at=clock())
    take_up(judge)
    assert (state_of(store), state_of(store, "timed")) == ("quiet", "pending")


def test_of_two_servers_one_tells_of_a_silence_and_the_other_goes_on_when_it_is_gone(
    store: Store, clock: Clock
) -> None:
    add_rule(store, SILENT, channels=("ops",))
    one, other = judge_of(store, clock, "one"), judge_of(store, clock, "other")
    training = Training(store)
    training.tell(1.0, at=clock())
    take_up(one)
    for _ in range(70):
        clock.seconds += 10
        one._pulse()
        other._pulse()
    assert [line[:2] for line in outbox(store)] == [("fired", 1)]
    training.tell(1.0, at=clock())
    store.writer.release("one").result()
    take_up(other)
    assert [line[:2] for line in outbox(store)] == [("fired", 1), ("resolved", 1)]
    pass_time(other, clock, 700)
    one._pulse()
    assert [line[:2] for line in outbox(store)] == [("fired", 1), ("resolved", 1), ("fired", 2)]


def test_updates_that_waited_for_a_rank_are_judged_by_rules_once_it_has_died(store: Store, clock: Clock) -> None:
    add_rule(store, "when rank disagreement(scale) or scale < 1")
    judge = judge_of(store, clock)
    ranks = [Training(store, hello(rank=rank, world_size=2)) for rank in range(2)]
    ranks[1].tell(2.0, at=clock())
    ranks[0].tell(2.0, 0.5, at=clock())
    take_up(judge)
    assert store.reader.unjudged() == ["run"]
    clock.seconds += 50
    take_up(judge)
    assert moves(store) == []
    clock.seconds += 20
    take_up(judge)
    assert (moves(store), store.reader.unjudged()) == ([("firing", 1)], [])


def test_a_rule_waits_after_a_restart_for_as_long_as_it_asks_and_not_for_what_others_do(
    store: Store, clock: Clock
) -> None:
    add_rule(store, "when no update for 1 min")
    add_rule(store, "when no update for 1 hour", "patient")
    add_rule(store, "when run is silent", "state")
    training = Training(store)
    training.tell(1.0, at=clock())
    take_up(judge_of(store, clock))
    clock.seconds += 7200
    judge = judge_of(store, clock)
    pass_time(judge, clock, 50)
    assert [state_of(store, name) for name in ("mine", "patient", "state")] == ["quiet"] * 3
    pass_time(judge, clock, 20)
    assert [state_of(store, name) for name in ("mine", "patient", "state")] == ["firing", "quiet", "firing"]
    pass_time(judge, clock, 3600)
    assert state_of(store, "patient") == "firing"


@pytest.mark.parametrize("reason", ["crashed", "silent", "finished"])
def test_a_state_that_lasts_fires_when_its_time_is_over_and_is_looked_at_no_more(
    store: Store, clock: Clock, reason: str
) -> None:
    add_rule(store, f"when run is {reason} for 10 min", channels=("ops",))
    judge, training = judge_of(store, clock), Training(store)
    training.tell(1.0, at=clock())
    take_up(judge)
    if reason != "silent":
        training.end(reason)
        judge.wake(RunId("run"))
        take_up(judge)
    pass_time(judge, clock, 590)
    assert [after for after, _ in moves(store)] == ["pending"]
    pass_time(judge, clock, 120)
    assert [after for after, _ in moves(store)] == ["pending", "firing", *(["resolved"] * (reason == "finished"))]
    assert [line[:2] for line in outbox(store)] == [("fired", 1)]
    pass_time(judge, clock, 100)
    assert list(judge._pulses.due()) == []
    # What a server that begins then finds is not more.
    later = judge_of(store, clock)
    pass_time(later, clock, 1000, every_s=50.0)
    assert [line[:2] for line in outbox(store)] == [("fired", 1)]
    assert list(later._pulses.due()) == []


def test_an_error_that_says_nothing_of_the_database_leaves_silences_alone(store: Store, clock: Clock) -> None:
    add_rule(store, SILENT)
    judge, training = judge_of(store, clock), Training(store)
    training.tell(1.0, at=clock())
    take_up(judge)

    def fail() -> None:
        raise NoRule(7)

    for _ in range(8):
        pass_time(judge, clock, 80)
        judge._attempt(fail)
    assert state_of(store) == "firing"


def test_an_update_that_comes_while_a_silence_is_committed_makes_it_none(store: Store, clock: Clock) -> None:
    add_rule(store, SILENT)
    judge, training = judge_of(store, clock), Training(store)
    training.tell(1.0, at=clock())
    take_up(judge)
    pass_time(judge, clock, 595)
    clock.seconds += 6
    (silence,) = judge._pulses.due()
    lookout = judge._pulses.let_pass(silence)
    assert lookout is not None
    training.tell(1.0, at=clock())
    fence = store.writer.claim(RunId("run"), "one").result().fence
    assert judge._pulses.commit(silence, lookout, fence).outcome is Outcome.MORE
    take_up(judge)
    pass_time(judge, clock, 20)
    assert moves(store) == []


def test_a_crashed_run_that_is_renamed_leaves_the_scope_of_a_rule_at_once(store: Store, clock: Clock) -> None:
    add_rule(store, "when scale < 1", tag="mine")
    judge, training = judge_of(store, clock), Training(store)
    training.tell(2.0, at=clock())
    store.writer.patch_run(RunId("run"), tags=["mine"]).result()
    take_up(judge)
    training.tell(0.5, at=clock())
    training.end("crashed")
    take_up(judge)
    assert state_of(store) == "firing"
    store.writer.patch_run(RunId("run"), tags=[]).result()
    # Another server holds it, and nothing comes that it could judge.
    clock.seconds += 60
    store.writer.release("one").result()
    assert store.writer.claim(RunId("run"), "other").result().mine
    judge.regard(RunId("run"))
    judge._pulse()
    assert state_of(store) == "firing"
    store.writer.release("other").result()
    judge._pulse()
    assert [after for after, _ in moves(store)] == ["firing", "resolved"]
    assert judge._regards == {}
