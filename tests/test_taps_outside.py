"""Steps that the watched scaler does not know of: each is an update, and somebody is told what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.small_training import Course, columns, steps, watching, windows

UPDATES = 20


def scaler_of(scale: float = 8.0) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale)


def test_steps_around_the_scaler_are_updates_of_their_own_and_are_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    course = Course(scaler=scaler_of())
    assert course.scaler is not None
    with watching(course.model, course.optimizer, course.scaler) as watched:
        for _ in range(2 * UPDATES):
            course.optimizer.zero_grad()
            course.backward()
            # Gradients eight times too large, unchecked.
            course.optimizer.step()
        records = watched.end()
    assert steps(records) == list(range(2 * UPDATES))
    assert set(columns(records)["skipped"].values()) == {0.0}
    assert set(columns(records)["scale"].values()) == {8.0}
    told = {"micro_batches": 1, "zero_grad": True, "unscale": "none", "stepped_outside": ["AdamW"]}
    assert windows(records) == dict.fromkeys(range(2 * UPDATES), told)
    (warning,) = (record.message for record in caplog.records)
    assert "AdamW has stepped 16 times without the scaler that is watched: pass watch() the scaler" in warning


def test_one_step_outside_beside_those_of_the_scaler_is_named_in_its_update(caplog: pytest.LogCaptureFixture) -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (one, other)]
    scaler = scaler_of()
    with watching([one, other], optimizers, scaler) as watched:
        for _ in range(UPDATES):
            for optimizer in optimizers:
                optimizer.zero_grad()
            scaler.scale(other(one(torch.randn(3, 2))).mean()).backward()
            optimizers[1].step()
            scaler.step(optimizers[0])
            scaler.update()
        records = watched.end()
    assert steps(records) == list(range(UPDATES))
    told = windows(records)[UPDATES - 1]
    assert told["stepped_outside"] == ["SGD#1"]
    assert told["of"] == {"SGD#0": {"unscale": "implicit"}, "SGD#1": {"unscale": "none"}}
    assert not caplog.records


def test_a_scaler_may_be_given_what_wraps_the_optimizer() -> None:
    class Wrapper(torch.optim.SGD):
        """Steps another one, as trainers wrap theirs."""

        def step(self, closure: Any = None) -> Any:
            return course.optimizer.step(closure)

    course = Course(scaler=scaler_of())
    assert course.scaler is not None
    wrapper = Wrapper(course.model.parameters(), lr=0.1)
    with watching(course.model, course.optimizer, course.scaler) as watched:
        course.backward()
        course.scaler.step(wrapper)
        course.scaler.update()
        assert all("stepped_outside" not in window for window in windows(watched.end()).values())
