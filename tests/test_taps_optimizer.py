"""Without a scaler the optimizers' own steps say when an update is over."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn

from tests.small_training import OPTIMIZERS, Course, bf16, columns, events, samples, steps, watching


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_update_is_a_step(optimizer: str) -> None:
    course = Course(OPTIMIZERS[optimizer], precision=bf16)
    with watching(course.model, course.optimizer, every=3) as watched:
        for _ in range(7):
            loss = course.update()
            watched.log(loss=loss)
        records = watched.end()
    found = columns(records)
    assert steps(records) == list(range(7))
    assert list(found["loss"].values()) == course.losses
    assert list(found["skipped"].values()) == [0.0] * 7
    assert "scale" not in found
    assert "growth_tracker" not in found
    assert {step: (sample.reason, sample.scale) for step, sample in samples(records).items()} == {
        0: ("periodic", None),
        3: ("periodic", None),
        6: ("periodic", None),
    }
    assert not events(records, "skip")


def test_a_step_that_raises_closes_nothing() -> None:
    course = Course(precision=bf16)
    course.optimizer.register_step_pre_hook(_refuse_second)
    with watching(course.model, course.optimizer) as watched:
        course.run(1)
        course.optimizer.zero_grad()
        course.backward()
        with pytest.raises(RuntimeError, match="second"):
            course.optimizer.step()
        assert steps(watched.end()) == [0]


def _refuse_second(optimizer: torch.optim.Optimizer, *_: object) -> None:
    if optimizer.state:
        raise RuntimeError("the second step")


def rounds(letters: str) -> list[str]:
    """Which optimizers' gradients were measured in each update, when two optimizers step in this order."""
    models = {"d": nn.Linear(2, 2), "g": nn.Linear(2, 2)}
    optimizers = {letter: torch.optim.SGD(model.parameters(), lr=0.1) for letter, model in models.items()}
    with watching(list(models.values()), list(optimizers.values()), every=1) as watched:
        for letter in letters:
            optimizers[letter].zero_grad()
            models[letter](torch.ones(1, 2)).sum().backward()
            optimizers[letter].step()
        return [told(sample.parameters) for sample in samples(watched.end()).values()]


def told(indexes: bytes) -> str:
    return "".join("d" if index == 0 else "g" for index in np.frombuffer(indexes, "<i4")[::2] // 2)


@pytest.mark.parametrize(
    ("letters", "expected"),
    [
        ("dgdg", ["dg", "dg"]),
        ("gdgd", ["gd", "gd"]),
        ("dddg", ["d", "d", "dg"]),
        ("dgd", ["dg", "d"]),
        ("ddd", ["d", "d", "d"]),
    ],
)
def test_with_several_optimizers_an_update_is_a_round(letters: str, expected: list[str]) -> None:
    assert rounds(letters) == expected


def test_a_disabled_scaler_is_no_scaler() -> None:
    course = Course(precision=bf16)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with watching(course.model, course.optimizer) as watched:
        for _ in range(3):
            course.optimizer.zero_grad()
            course.backward()
            scaler.unscale_(course.optimizer)
            scaler.step(course.optimizer)
            scaler.update()
        assert steps(watched.end()) == [0, 1, 2]


def test_removing_closes_a_round_that_is_open() -> None:
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    with watching(models, optimizers) as watched:
        models[0](torch.ones(1, 2)).sum().backward()
        optimizers[0].step()
        assert steps(watched.end()) == [0]
    assert not list(chain.from_iterable(one._optimizer_step_pre_hooks for one in optimizers))
