"""Without a scaler the optimizers' own steps say when an update is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from time import perf_counter

import numpy as np
import pytest
import torch
from scalescope.packing import unpack
from scalescope.wire import Record
from torch import nn
from torch.nn.utils import clip_grad

from tests.small_training import OPTIMIZERS, WIDTH, Course, bf16, columns, events, samples, steps, watching

# What every clipping of torch calls, and the hook replaces.
_GROUPING = "_group_tensors_by_device_and_dtype"
Clip = Callable[[Iterable[torch.Tensor], float], object]


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
        ("dgdg", ["d", "g", "d", "g"]),
        ("gdgd", ["g", "d", "g", "d"]),
        ("dddg", ["d", "d", "d", "g"]),
        ("ddd", ["d", "d", "d"]),
    ],
)
def test_with_several_optimizers_an_update_is_what_steps_between_two_backward_passes(
    letters: str, expected: list[str]
) -> None:
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


@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_])
def test_gradients_are_measured_before_clipping_whatever_name_it_was_imported_by(clip: Clip) -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    truth = []
    original = getattr(clip_grad, _GROUPING)
    with watching(model, optimizer, every=1) as watched:
        assert getattr(clip_grad, _GROUPING) is not original
        for _ in range(3):
            optimizer.zero_grad()
            (model(torch.randn(4, 8)) * 100).square().mean().backward()
            truth.append(largest(model))
            clip(model.parameters(), 1.0)
            optimizer.step()
        assert amax(watched.end()) == truth
    assert getattr(clip_grad, _GROUPING) is original


def test_a_closure_is_measured_when_it_has_run() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    truth = []

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        truth.append(largest(model))
        return float(loss.item())

    with watching(model, optimizer, every=1) as watched:
        for _ in range(4):
            optimizer.step(closure)
        assert amax(watched.end()) == truth


def test_a_step_that_failed_leaves_nothing_in_the_sample_of_the_next() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fails = [True, False]

    def refuse(*_: object) -> None:
        if fails.pop(0):
            raise RuntimeError("the first step")

    with watching(model, optimizer, every=1) as watched:
        optimizer.register_step_pre_hook(refuse)
        model(torch.randn(4, 8)).square().mean().backward()
        with pytest.raises(RuntimeError, match="first"):
            optimizer.step()
        optimizer.zero_grad()
        (model(torch.randn(4, 8)) * 100).square().mean().backward()
        truth = largest(model)
        optimizer.step()
        assert amax(watched.end()) == [truth]


def test_an_optimizer_that_rests_holds_up_nothing() -> None:
    models = [nn.Linear(8, 8), nn.Linear(8, 8)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizers[0], lambda epoch: 1 / (1 + epoch))
    rates = []
    with watching(models, optimizers, every=1) as watched:
        for step in range(4):
            optimizers[0].zero_grad()
            models[0](torch.randn(4, 8)).square().mean().backward()
            watched.log(loss=step, tokens=3)
            rates.append(optimizers[0].param_groups[0]["lr"])
            optimizers[0].step()
            schedule.step()
        records = watched.end()
    assert list(columns(records)["loss"].values()) == [0, 1, 2, 3]
    assert list(columns(records)["tokens"].values()) == [3] * 4
    assert list(columns(records)["learning_rate"].values()) == rates
    assert [sample.micro_batches for sample in samples(records).values()] == [1] * 4


def test_steps_inside_the_backward_close_the_update_whose_loss_is_logged_after_it() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizers: dict[torch.Tensor, torch.optim.Optimizer]
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    with watching(model, list(optimizers.values()), every=1) as watched:
        for number in range(6):
            model(torch.randn(4, 8)).square().mean().backward()
            watched.log(loss=number)
        records = watched.end()
    assert columns(records)["loss"] == {step: float(step) for step in range(6)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore::UserWarning:torch")
def test_a_compiled_step_is_heard_as_any_other() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def step() -> None:
        optimizer.step()

    with watching(model, optimizer, every=1) as watched:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            step()
        assert steps(watched.end()) == [0, 1, 2]
    torch.compiler.reset()


def largest(model: nn.Module) -> float:
    return max(float(parameter.grad.abs().max()) for parameter in model.parameters() if parameter.grad is not None)


def amax(records: Sequence[Record]) -> list[float]:
    return [float(unpack(sample.table).amax.max()) for sample in samples(records).values()]


def test_what_a_closure_takes_is_no_time_of_the_optimizers() -> None:
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    took = 0.0

    def closure() -> torch.Tensor:
        nonlocal took
        began = perf_counter()
        while perf_counter() - began < 0.02:
            optimizer.zero_grad()
            loss: torch.Tensor = model(torch.ones(1, WIDTH)).sum()
            loss.backward()
        took = perf_counter() - began
        return loss

    with watching(model, optimizer, every=1) as watched:
        began = perf_counter()
        optimizer.step(closure)
        whole = perf_counter() - began
        found = columns(watched.end())
    assert 0 < found["optimizer_ms"][0] < (whole - took) * 1e3
