"""The scope of a training, over a real socket: what is logged, what it costs, and what remains of it."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from pathlib import Path

import pytest
import scalescope
import torch
from scalescope.numerics import measure
from scalescope.numerics.measure_device import DeviceMeasuring
from scalescope.numerics.pool import Pool
from scalescope.scope import Scope
from scalescope.watching import watch
from scalescope.wire import Bye, Layout, Probe

from tests.small_server import Shelf, SmallServer, farewell, free_port
from tests.small_training import Course, bf16, columns, events, samples, steps

pytestmark = pytest.mark.usefixtures("plain_environment")


def test_a_whole_training_arrives(server: SmallServer, shelf: Shelf) -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"), overflows={3, 7, 8})
    scope = scalescope.watch(course.model, course.optimizer, course.scaler, url=server.url, every=5)
    for _ in range(20):
        loss = course.update()
        scope.log(loss=loss, tokens=32)
    scope.close()
    records = shelf.records
    assert isinstance(records[0], Layout)
    assert steps(records) == list(range(20))
    assert {step for step, skipped in columns(records)["skipped"].items() if skipped} == {3, 7, 8}
    assert events(records, "skip").keys() == {3, 7, 8}
    # By the clock, and from the first skip on for as long as updates are dense.
    assert samples(records).keys() == {0, *range(3, 12), 15}
    assert list(columns(records)["loss"].values()) == course.losses
    assert farewell(records).reason == "finished"
    assert scope.stats.pending == scope.stats.dropped == scope.stats.errors == scope.stats.refused == 0
    assert scope.stats.sent == len(records)


def test_the_last_update_arrives_with_its_late_values_before_training_ends(server: SmallServer, shelf: Shelf) -> None:
    course = Course(precision=bf16)
    scope = watch(course.model, course.optimizer, url=server.url)
    course.run(2)
    scope.log(loss=1.0)
    course.backward()
    shelf.until(lambda shelf: steps(shelf.records) == [0, 1])
    assert columns(shelf.records)["loss"] == {1: 1.0}
    scope.close()


def test_training_with_the_server_away_is_bit_identical_and_nothing_is_lost(tmp_path: Path) -> None:
    def train(url: str | None) -> Course:
        course = Course(scaler=torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=5), clip=True)
        scope = None if url is None else watch(course.model, course.optimizer, course.scaler, url=url)
        course.run(100)
        if scope is not None:
            scope.close()
            assert scope.stats.errors == scope.stats.dropped == 0
        return course

    plain, watched = train(None), train(f"http://127.0.0.1:{free_port()}")
    assert plain.losses == watched.losses
    assert all(map(torch.equal, plain.weights(), watched.weights()))
    assert len(list((tmp_path / "spool").iterdir())) == 1


def test_closing_twice_puts_everything_back_once(server: SmallServer, shelf: Shelf) -> None:
    hook = sys.excepthook
    course = Course(scaler=torch.amp.GradScaler("cpu"))
    scope = watch(course.model, course.optimizer, course.scaler, url=server.url)
    course.run(1)
    scope.close()
    scope.close()
    course.run(1)
    scope.log(loss=1.0)
    assert sys.excepthook is hook
    assert type(course.scaler) is torch.amp.GradScaler
    assert steps(shelf.records) == [0]
    assert sum(isinstance(record, Bye) for record in shelf.records) == 1


def test_what_the_hook_costs_is_told(server: SmallServer) -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"))
    scope = watch(course.model, course.optimizer, course.scaler, url=server.url, every=5)
    course.run(20)
    unsampled, sampled = scope.stats.unsampled, scope.stats.sampled
    scope.close()
    assert (unsampled.updates, sampled.updates) == (16, 4)
    assert unsampled.median_us is not None
    assert sampled.median_us is not None
    assert 0 < unsampled.median_us < sampled.median_us


def test_measurements_that_there_was_no_room_for_are_told(server: SmallServer, monkeypatch: pytest.MonkeyPatch) -> None:
    course = Course(precision=bf16)
    scope = watch(course.model, course.optimizer, url=server.url)
    cpu = torch.device("cpu")
    full = DeviceMeasuring(cpu, pool=Pool(cpu, most_bytes=0))
    monkeypatch.setitem(measure._DEVICES, cpu, full)
    assert scope.stats.unmeasured == 0
    assert full.measure([torch.ones(3)], 1.0) is None
    assert scope.stats.unmeasured == 1
    scope.close()


def test_a_model_that_keeps_its_scope_copies_and_pickles(server: SmallServer) -> None:
    course = Course(precision=bf16)
    scope = watch(course.model, course.optimizer, url=server.url)
    vars(course.model)["scope"] = scope
    assert type(vars(copy.deepcopy(course.model))["scope"]) is Scope
    assert type(pickle.loads(pickle.dumps(scope))) is Scope
    scope.close()


def test_a_value_may_have_any_name(server: SmallServer, shelf: Shelf) -> None:
    course = Course(precision=bf16)
    with watch(course.model, course.optimizer, url=server.url) as scope:
        course.run(1)
        scope.log(self=1.0)
        Scope().log(self=1.0)
    assert columns(shelf.records)["self"] == {0: 1.0}


def test_a_probe_is_answered_and_arrives(server: SmallServer, shelf: Shelf) -> None:
    course = Course(precision=bf16)

    def loss() -> torch.Tensor:
        value: torch.Tensor = course.model(course.batches[0]).float().square().mean()
        return value

    with watch(course.model, course.optimizer, url=server.url) as scope:
        course.run(1)
        result = scope.probe(loss)
        assert result is not None
    assert scope.probe(loss) is None
    assert Scope().probe(loss) is None
    (probe,) = (record for record in shelf.records if isinstance(record, Probe))
    assert (probe.step, json.loads(probe.data)["loss"]) == (1, result.loss)
