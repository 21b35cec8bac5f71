"""What is kept of rules on runs: no more than there is room for, and of runs that are at work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from scalescope_server.judge_findings import Weighing
from scalescope_server.judge_pass import judge
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.records import RunId
from scalescope_server.watching import keeper as keeping
from scalescope_server.watching.keeper import LEAST_LAYERS, Keeper
from scalescope_server.watching.lookout import Lookout

from tests.batches import batch, hello, histograms
from tests.watched import Clock, Training, add_rule

RUNS = [RunId(f"run{number}") for number in range(4)]


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with closing(open_store(database, clock=Clock())) as opened:
        add_rule(opened, "when max by layer(amax) > 1e-3")
        add_rule(opened, "when no update for 10 min", "timed")
        yield opened


def begin(store: Store, run: RunId) -> Training:
    training = Training(store, hello(run, world_size=1))
    training.tell(1.0)
    return training


def kept(keeper: Keeper, store: Store) -> list[RunId]:
    found = []
    for run in RUNS:
        vigil = store.reader.vigil(run)
        if (lookout := keeper.stands_at(run, vigil.position, None)) is not None:
            found.append(run)
            keeper.give_back(lookout)
    return found


def test_where_one_run_too_many_is_at_work_the_others_keep_what_they_have(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    keeper, trainings = Keeper(store.reader, clock), [begin(store, run) for run in RUNS]
    monkeypatch.setattr(keeping, "MOST_LAYERS", 3 * LEAST_LAYERS)
    for _ in range(3):
        for run, training in zip(RUNS, trainings, strict=True):
            clock.seconds += 1
            training.tell(1.0)
            judge(store, run, None, keeper)
        assert kept(keeper, store) == RUNS[:3]
    # The first is at work no more.
    for _ in range(30):
        clock.seconds += 10
        for run, training in zip(RUNS[1:], trainings[1:], strict=True):
            training.tell(1.0)
            judge(store, run, None, keeper)
    assert kept(keeper, store) == RUNS[1:]


def test_a_lookout_weighs_what_its_layers_do_and_one_alone_is_kept_in_any_case(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "MOST_LAYERS", 1)
    training, keeper = begin(store, RUNS[0]), Keeper(store.reader, Clock())
    layout = training.say.layout(*[(f"w{place}", "fp16") for place in range(3)])
    sample = training.say.sample(training.step, histograms([0], [0], [0]))
    store.writer.append(batch(training.hello, layout, sample)).result()
    training.tell(1.0)
    judge(store, RUNS[0], None, keeper)
    lookout = taken(keeper, store, RUNS[0])
    assert (lookout.layers, lookout.posts) == (3, 2)
    keeper.give_back(lookout)
    assert taken(keeper, store, RUNS[0]) is lookout


def test_for_time_that_passes_only_rules_that_ask_for_it_are_made(store: Store) -> None:
    begin(store, RUNS[0])
    keeper = Keeper(store.reader, Clock())
    timed = taken(keeper, store, RUNS[0], timed=True)
    assert [entry.rule.name for entry in timed.entries] == ["timed"]
    keeper.give_back(timed)
    whole = taken(keeper, store, RUNS[0])
    assert whole is timed
    assert sorted(entry.rule.name for entry in whole.entries) == ["mine", "timed"]


def taken(keeper: Keeper, store: Store, run: RunId, *, timed: bool = False) -> Lookout:
    lookout = keeper.take(store.reader.vigil(run), Weighing(store, run), None, timed=timed)
    assert lookout is not None
    return lookout
