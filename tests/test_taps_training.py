"""All taps together: training is bit for bit what it is without them, and everything is put back."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType

import pytest
import scalescope
import torch
from torch import nn

from tests.small_training import OPTIMIZERS, Chain, Course, bf16, columns, fp16, fp32, steps, watching

UPDATES = 100
PACKAGE = str(Path(scalescope.__file__).parent)


def same(make: Callable[[], Course]) -> Course:
    """Trains twice, watched and not; the watched course, after losses and weights were compared bit for bit."""
    plain, watched_course = make(), make()
    plain.run(UPDATES)
    with watching(watched_course.model, watched_course.optimizer, watched_course.scaler, every=7) as watched:
        for _ in range(UPDATES):
            loss = watched_course.update()
            watched.log(loss=loss, tokens=8)
        assert steps(watched.end()) == list(range(UPDATES))
    assert plain.losses == watched_course.losses
    for one, other in zip(plain.weights(), watched_course.weights(), strict=True):
        assert torch.equal(one, other)
    return watched_course


@pytest.mark.parametrize("clip", [False, True], ids=["plain", "unscale-and-clip"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_loss_and_weights_are_bit_identical_with_a_scaler(optimizer: str, clip: bool) -> None:
    def make() -> Course:
        # Starts too high and doubles often: real skips at both ends.
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=5)
        return Course(OPTIMIZERS[optimizer], scaler=scaler, clip=clip, overflows={50})

    course = same(make)
    assert course.scaler is not None
    assert course.scaler.get_scale() < 2.0**30


@pytest.mark.parametrize("precision", [bf16, fp32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_loss_and_weights_are_bit_identical_without_a_scaler(
    optimizer: str, precision: Callable[[], AbstractContextManager[object]]
) -> None:
    same(lambda: Course(OPTIMIZERS[optimizer], precision=precision))


def test_removing_puts_every_hook_and_class_back_and_may_be_repeated() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"))
    with watching(course.model, course.optimizer, course.scaler) as watched:
        course.run(2)
        watched.tap.remove()
        watched.tap.remove()
        course.run(2)
        assert steps(watched.drain()) == [0, 1]
    assert type(course.scaler) is torch.amp.GradScaler
    assert not course.optimizer._optimizer_step_pre_hooks
    assert not course.optimizer._optimizer_step_post_hooks
    assert not any(parameter._post_accumulate_grad_hooks for parameter in course.model.parameters())
    assert all(parameter._backward_hooks is None for parameter in course.model.parameters())


def test_two_trainings_are_watched_side_by_side() -> None:
    one = Course(scaler=torch.amp.GradScaler("cpu"), overflows={1})
    other = Course(OPTIMIZERS["sgd-fused"], precision=bf16)
    with (
        watching(one.model, one.optimizer, one.scaler) as first,
        watching(other.model, other.optimizer) as second,
    ):
        for _ in range(3):
            one.update()
            other.update()
        assert list(columns(first.end())["skipped"].values()) == [0, 1, 0]
        assert list(columns(second.end())["skipped"].values()) == [0, 0, 0]


def test_a_value_belongs_to_the_update_whose_backward_ran_last() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"))
    with watching(course.model, course.optimizer, course.scaler) as watched:
        watched.log(value=1.0)  # before the first backward: to the first
        course.optimizer.zero_grad()
        course.backward()
        watched.log(value=2.0)  # the last counts
        course.step()
        watched.log(late=3.0)  # closed, but no other backward has begun
        course.optimizer.zero_grad()
        course.backward()
        watched.log(value=4.0)
        course.backward()
        course.step()
        records = watched.end()
    assert columns(records)["value"] == {0: 2.0, 1: 4.0}
    assert columns(records)["late"] == {0: 3.0}


def test_tokens_add_up_over_an_update() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"))
    with watching(course.model, course.optimizer, course.scaler) as watched:
        for _ in range(2):
            course.optimizer.zero_grad()
            for _ in range(3):
                course.backward()
                watched.log(tokens=torch.tensor(5))
            course.step()
        records = watched.end()
    assert columns(records)["tokens"] == {0: 15.0, 1: 15.0}


def test_a_logged_tensor_is_told_as_it_was() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"))
    with watching(course.model, course.optimizer, course.scaler) as watched:
        total = torch.zeros(1)
        for _ in range(3):
            total += course.update().detach()
            watched.log(loss=total)
        records = watched.end()
    running = [sum(course.losses[: count + 1]) for count in range(3)]
    assert list(columns(records)["loss"].values()) == pytest.approx(running)


def test_an_update_stays_open_to_late_values_until_the_next_backward() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"))
    with watching(course.model, course.optimizer, course.scaler) as watched:
        course.run(1)
        assert steps(watched.drain()) == []
        watched.log(loss=0.5)
        course.optimizer.zero_grad()
        course.backward()
        records = watched.drain()
    assert columns(records)["loss"] == {0: 0.5}


def test_a_deep_copy_of_the_model_does_not_report() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"))
    with watching(course.model, course.optimizer, course.scaler) as watched:
        average = copy.deepcopy(course.model)
        average(torch.ones(2, 8)).sum().backward()
        watched.log(value=1.0)
        course.run(1)
        watched.log(value=2.0)
        assert columns(watched.end())["value"] == {0: 2.0}


@pytest.mark.parametrize("compiled", [False, True])
def test_a_compiled_model_trains_to_the_same_bits(compiled: bool) -> None:
    def make() -> Course:
        course = Course(scaler=torch.amp.GradScaler("cpu"), precision=fp16)
        if compiled:
            course.model.compile(backend="aot_eager")
        return course

    same(make)


def calls_in_one_update(layers: int, scaler: torch.amp.GradScaler | None) -> int:
    """How many calls an unsampled update makes in this package, Python's and C's."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"} and frame.f_code.co_filename.startswith(PACKAGE)

    with watching(model, optimizer, scaler, every=1000) as watched:
        for step in range(20):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            (loss if scaler is None else scaler.scale(loss)).backward()
            sys.setprofile(count if step == 19 else None)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            watched.log(loss=loss)
            sys.setprofile(None)
        watched.end()
    return calls


@pytest.mark.parametrize("scaled", [True, False])
def test_an_unsampled_update_takes_as_many_calls_whatever_the_number_of_parameters(scaled: bool) -> None:
    few, many = (
        calls_in_one_update(layers, torch.amp.GradScaler("cpu", init_scale=1.0) if scaled else None)
        for layers in (2, 40)
    )
    assert few == many
    assert 10 < few < 240


def test_a_model_that_is_gone_leaves_the_rest_watched() -> None:
    one, other = Chain(), nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1)
    with watching([one, other], optimizer) as watched:
        for _ in range(2):
            optimizer.zero_grad()
            other(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        assert steps(watched.end()) == [0, 1]
