"""Built-in rules on real trainings: each fires on the trouble that it is for, and none on a healthy one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import torch
from scalescope_server.rules.pack import built_in

from tests import healthy_models
from tests.healthy_trainings import KINDS, Loop, Trained, long_run
from tests.judged import firings, judging, reach, unknown
from tests.launching import launched
from tests.programs import Programs
from tests.serving import Served
from tests.troubled_trainings import TROUBLES

RULES = {rule.name.removeprefix("pack/") for rule in built_in().rules}
# Their trainings are in the tests of these files: what goes by time, and what takes two processes.
OF_TIME = {"silent-trainer", "crashed-trainer", "stalled-loop", "hook-drops-data"}
OF_RANKS = {"rank-disagreement"}
# Of the healthy ones those that are most likely to be taken for a trouble; all are in ``benchmarks.false_alarms``.
HEALTHY = (
    "fp16, warm-up from 0 and cosine to 0",
    "fp16, two groups, one at a rate of 0",
    "fp16, two optimizers, one every fifth update",
    "fp16, adapters of low rank",
)
# Windows of 1000 updates are known from half of it on.
UPDATES = 550


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with judging(tmp_path_factory.mktemp("trained")) as served:
        yield served


@pytest.mark.parametrize("name", TROUBLES)
def test_a_trouble_fires_what_is_for_it_and_nothing_else(one_server: Served, name: str) -> None:
    trouble = TROUBLES[name]
    fired = firings(one_server, trouble.train(one_server.url))
    assert set(fired) == set(trouble.fires)
    culprits = {rule: culprit for rule, culprit in trouble.fires.items() if culprit is not None}
    assert {rule: fired[rule] for rule in culprits} == culprits


@pytest.mark.parametrize("kind", HEALTHY)
def test_none_fires_on_a_healthy_training(one_server: Served, kind: str) -> None:
    assert firings(one_server, KINDS[kind](one_server.url, kind, UPDATES)) == {}


def test_none_fires_on_a_long_healthy_training_of_which_all_is_known(one_server: Served) -> None:
    run = long_run(one_server.url, "long")
    assert firings(one_server, run) == {}
    # Windows of minutes are not, in a training of seconds.
    assert unknown(one_server, run) == OF_RANKS | {"hook-drops-data"}


def test_none_fires_on_a_healthy_training_of_ten_minutes(one_server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Trained(Loop(healthy_models.layers), healthy_models.layers(), updates=700, seed=0)
    began, seconds = time.time() - 700.0, count()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: began + next(seconds))
        scope = training.watched(one_server.url, "ten minutes")
    with scope:
        for _ in range(training.updates):
            scope.log(loss=training.update())
        reach(scope)
    assert firings(one_server, scope.run_id) == {}
    assert "hook-drops-data" not in unknown(one_server, scope.run_id)


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_ranks_that_part_fire_and_ranks_that_skip_together_do_not(
    one_server: Served, programs: Programs, tmp_path: Path
) -> None:
    (runs, _) = launched(programs, 2, tmp_path, "tests.parted_ranks", one_server.url)
    assert firings(one_server, runs["together"]) == {}
    assert "rank-disagreement" not in unknown(one_server, runs["together"])
    assert set(firings(one_server, runs["apart"])) == OF_RANKS


def test_there_is_a_training_for_every_rule() -> None:
    trained = {rule for trouble in TROUBLES.values() for rule in trouble.fires}
    assert trained.isdisjoint(OF_TIME | OF_RANKS)
    assert trained | OF_TIME | OF_RANKS == RULES
