"""Which updates are measured, and whether that is known as they begin."""

from __future__ import annotations

import torch
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
