"""Which updates are measured, and whether that is known as they begin."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
from scalescope import wire
from scalescope.recorder import Recorder
from scalescope.taps.budget import Budget
from scalescope.taps.edge import Edge
from scalescope.taps.training import Training, TrainingTap
from torch import nn

from tests.small_training import Course, Watched, samples, watching


def expected(watched: Watched) -> bool:
    return watched.tap._loop.sampling.expects()


def test_the_updates_that_are_expected_are_those_that_are_sampled() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"), overflows={13})
    told = []
    with watching(course.model, course.optimizer, course.scaler, every=6) as watched:
        for step in range(30):
            told += [step] if expected(watched) else []
            course.update()
        found = samples(watched.end())
    # The skip itself comes unexpected.
    assert sorted({*told, 13}) == list(found) == [0, 6, 12, 13, *range(14, 22), 24]


def test_a_dense_update_is_told_as_asked_for_and_changes_no_turn() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"), overflows={1})
    with watching(course.model, course.optimizer, course.scaler, every=4) as watched:
        course.run(12)
        found = samples(watched.end())
    reasons = {step: sample.reason for step, sample in found.items()}
    assert reasons == dict.fromkeys(range(2, 10), "request") | {1: "skip"} | dict.fromkeys((0, 4, 8), "periodic")


def test_nan_gradients_without_a_scaler_make_the_next_updates_dense() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watching(model, optimizer, every=10) as watched:
        for step in range(25):
            optimizer.zero_grad()
            (model(torch.ones(1, 2)).sum() * (float("nan") if step == 10 else 1.0)).backward()
            optimizer.step()
        assert list(samples(watched.end())) == [0, *range(10, 19), 20]


def test_an_optimizer_that_never_steps_is_not_expected_for_ever() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (one, other)]
    told = 0
    with watching([one, other], optimizers, every=100) as watched:
        for _ in range(50):
            told += expected(watched)
            one(torch.ones(1, 2)).sum().backward()
            optimizers[0].step()
        watched.end()
    assert told < 10


@pytest.mark.parametrize("adapts", [True, False])
def test_where_a_sample_takes_more_than_the_budget_has_they_come_further_apart(adapts: bool) -> None:
    # Its updates take less than a millisecond, of which one percent is never enough.
    course = Course(scaler=torch.amp.GradScaler("cpu", init_scale=8.0))
    recorder, edge = Recorder(), Edge()
    training = Training([course.model], [course.optimizer], course.scaler)
    tap = TrainingTap(training, recorder, edge, every=2, adapts=adapts, clock=time.time)
    course.run(64)
    tap.remove()
    sampled = [record.step for record in recorder.drain() if isinstance(record, wire.Sample)]
    apart = [later - earlier for earlier, later in itertools.pairwise(sampled)]
    assert edge.errors == 0
    assert sorted(apart) == apart
    assert set(apart) == ({2, 4, 8, 16} if adapts else {2})


def test_what_the_hooks_own_thread_takes_is_paid_out_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []

    def sampled(_: Budget, _step: int, _now_ns: int, total_ns: int, _spent_ns: int) -> None:
        told.append(total_ns)

    monkeypatch.setattr(Budget, "sampled", sampled)
    course = Course(scaler=torch.amp.GradScaler("cpu", init_scale=8.0))
    with watching(course.model, course.optimizer, course.scaler, every=1) as watched:
        course.run(2)
        watched.recorder.thread_ns = 10**15
        course.run(1)
    assert [total_ns > 10**15 for total_ns in told] == [False, False, True]
