"""What becomes of alerts when a run ends, or is no longer one that a rule is for, through the real judge and store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from scalescope_server.judge_pass import Outcome
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.records import RunId
from scalescope_server.watching.keeper import Keeper

from tests.batches import STARTED_AT, hello
from tests.watched import RUN, Clock, Training, add_rule, look, moves, outbox, state_of

pytestmark = pytest.mark.both_engines


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with closing(open_store(database, clock=Clock())) as opened:
        yield opened


@pytest.fixture
def keeper(store: Store) -> Keeper:
    return Keeper(store.reader, Clock())


def test_a_run_that_crashed_with_something_left_to_tell_is_still_looked_at(store: Store) -> None:
    keeper = Keeper(store.reader, Clock())
    add_rule(store, "when scale < 1", channels=("ops",))
    store.writer.silence("proj*", STARTED_AT - 1, STARTED_AT + 60, "a move", STARTED_AT).result()
    training = Training(store)
    training.tell(0.5)
    training.end("crashed")
    look(store, keeper)
    assert keeper.waiting() == {RUN}


def test_what_fires_as_a_run_finishes_is_over_with_it_and_what_fires_on_a_crashed_one_stays(
    store: Store, keeper: Keeper
) -> None:
    add_rule(store, "when scale < 1 keep firing for 5 steps", channels=("ops",))
    add_rule(store, "when scale < 1 for 5 steps", "pending")
    for run, reason in (("good", "finished"), ("bad", "crashed")):
        training = Training(store, hello(run, world_size=1))
        training.tell(0.5)
        look(store, keeper, RunId(run))
        training.end(reason)
        look(store, keeper, RunId(run))
        look(store, Keeper(store.reader, Clock()), RunId(run))
    found = {(each.alert.run, each.alert.name): each for each in store.reader.alerts()[0]}
    good, bad = found[RunId("good"), "mine"], found[RunId("bad"), "mine"]
    assert (good.alert.state, good.alert.is_open, good.alert.sentence) == ("quiet", False, "the run has ended")
    assert [(moved.after, moved.sentence) for moved in good.transitions] == [
        *(("resolved", "the run has ended"), ("firing", ""))
    ]
    assert [(line.happened, line.channel) for line in good.deliveries if line.channel == "ops"] == [
        *(("resolved", "ops"), ("fired", "ops"))
    ]
    assert (bad.alert.state, bad.alert.is_open) == ("firing", True)
    assert (RunId("good"), "pending") not in found
    assert found[RunId("bad"), "pending"].alert.state == "pending"


def test_a_run_that_goes_on_after_its_end_fires_anew(store: Store, keeper: Keeper) -> None:
    add_rule(store, "when scale < 1")
    first = Training(store)
    first.tell(0.5)
    first.end()
    look(store, keeper)
    second = Training(store, hello(segment="second", world_size=1))
    second.tell(0.5)
    look(store, keeper)
    assert moves(store) == [("firing", 0), ("resolved", 0), ("firing", 1)]


def test_of_the_end_of_a_run_it_is_told_once(store: Store, keeper: Keeper) -> None:
    add_rule(store, "when run is finished", channels=("ops",))
    training = Training(store)
    training.tell(1.0)
    training.end()
    for _ in range(2):
        look(store, keeper)
        look(store, Keeper(store.reader, Clock()))
    assert moves(store) == [("firing", None), ("resolved", 0)]
    assert [line[:2] for line in outbox(store)] == [("fired", 1)]


def test_a_run_that_leaves_the_scope_of_a_rule_lets_its_alert_end(store: Store, keeper: Keeper) -> None:
    add_rule(store, "when scale < 1", tag="watched", channels=("ops",))
    training = Training(store)
    training.tell(0.5)
    store.writer.patch_run(RUN, tags=["watched"]).result()
    look(store, keeper)
    training.tell(0.5)
    look(store, keeper)
    assert state_of(store) == "firing"
    store.writer.patch_run(RUN, tags=[]).result()
    look(store, keeper)
    (found,) = store.reader.alerts()[0]
    assert (found.alert.state, found.alert.is_open) == ("quiet", False)
    assert found.transitions[0].sentence == "the run is no longer one that the rule is for"
    assert [line[:2] for line in outbox(store)] == [("fired", 1), ("resolved", 1)]
    assert look(store, keeper) is Outcome.NOTHING
    # What was while no rule was for it is the past.
    training.tell(0.5, 2.0)
    look(store, keeper)
    store.writer.patch_run(RUN, tags=["watched"]).result()
    training.tell(2.0)
    look(store, keeper)
    assert [after for after, _ in moves(store)] == ["firing", "resolved"]
