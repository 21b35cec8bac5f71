"""What modules answer and get back, against an account of one's own; and training as it is without."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from scalescope import wire
from scalescope.recorder import Recorder
from scalescope.taps.edge import Edge
from scalescope.taps.training import Training, TrainingTap
from torch import nn
from torch.overrides import TorchFunctionMode

from tests.small_modules import Account, no_hooks, reasons, tallies, trained
from tests.small_training import Course, bf16, columns, fp16, fp32, layouts, samples, watching

WIDTH = 4


@pytest.mark.parametrize("precision", [fp16, bf16, fp32], ids=["fp16", "bf16", "fp32"])
def test_what_is_told_is_what_an_account_of_its_own_finds(
    precision: Callable[[], AbstractContextManager[object]],
) -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"), precision=precision)
    account = Account(course.model)
    truth = {}
    with watching(course.model, course.optimizer, course.scaler, every=3) as watched:
        for step in range(7):
            course.update()
            truth[step] = account.numbers()
        records = watched.end()
    told = tallies(records)
    assert list(told) == [0, 3, 6]
    assert set(told[0]) == {"", "layers.0", "layers.1", "layers.2", "layers.3"}
    assert told == {step: truth[step] for step in told}
    assert set(reasons(records).values()) == {"periodic"}


def test_modules_are_heard_when_gradients_are_sampled_and_densely_after_a_skip() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"), overflows={7})
    with watching(course.model, course.optimizer, course.scaler, every=5) as watched:
        course.run(20)
        records = watched.end()
    # Gradients of the skipped update are measured after the fact; its modules were not heard.
    assert set(samples(records)) - {7} == set(tallies(records)) == {0, 5, *range(8, 16)}
    assert reasons(records) == {step: "periodic" if step % 5 == 0 else "request" for step in tallies(records)}


def test_of_a_window_the_first_micro_batch_is_heard() -> None:
    course = Course(precision=fp32)
    account = Account(course.model)
    with watching(course.model, course.optimizer, every=2) as watched:
        course.optimizer.zero_grad()
        course.backward()
        truth = account.numbers()
        for _ in range(3):
            course.backward()
        course.step()
        told = tallies(watched.end())
    assert told[0] == truth


def test_of_a_dense_window_every_micro_batch_is_heard() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"), overflows={0})
    account = Account(course.model)
    with watching(course.model, course.optimizer, course.scaler, every=100) as watched:
        course.update()
        account.numbers()
        course.optimizer.zero_grad()
        for _ in range(3):
            course.backward()
        truth = account.numbers()
        course.step()
        told = tallies(watched.end())
    assert told[1] == truth
    assert told[1]["layers.0"]["forward_numel"] == 3 * 4 * 8


def test_evaluation_is_no_part_of_training() -> None:
    course = Course(precision=fp32)
    account = Account(course.model)
    with watching(course.model, course.optimizer, every=1) as watched:
        with torch.no_grad():
            course.model(torch.full((9, 8), 1e6))
        with torch.inference_mode():
            course.model(torch.full((9, 8), 1e6))
        account.numbers()
        course.update()
        truth = account.numbers()
        assert tallies(watched.end())[0] == truth


def test_what_a_model_runs_without_gradients_inside_its_own_forward_counts() -> None:
    class Teaching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher, self.student = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                target = self.teacher(batch)
            answer: torch.Tensor = (self.student(batch) - target).square()
            return answer

    model = Teaching()
    account = Account(model)
    assert tallies(trained(model, lambda: model(torch.randn(2, WIDTH)).mean()))[0] == account.numbers()


def test_a_gradient_penalty_s_double_backward_is_heard_as_it_happens() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    account = Account(model)

    def loss() -> torch.Tensor:
        batch = torch.randn(3, WIDTH, requires_grad=True)
        score = model(batch).sum()
        (slope,) = torch.autograd.grad(score, batch, create_graph=True)
        total: torch.Tensor = score + (slope.norm() - 1).square()
        return total

    assert tallies(trained(model, loss))[0] == account.numbers()


def test_two_trainings_hear_their_own_modules() -> None:
    one, other = Course(precision=fp32), Course(precision=bf16)
    with (
        watching(one.model, one.optimizer, every=1) as first,
        watching(other.model, other.optimizer, every=1) as second,
    ):
        one.update()
        other.update()
        for watched in (first, second):
            assert tallies(watched.end())[0][""]["forward_numel"] == 32


def test_values_are_as_they_stood_scaled() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10), precision=fp32)
    with watching(course.model, course.optimizer, course.scaler, every=1) as watched:
        course.update()
        (tally,) = [r for r in watched.end() if isinstance(r, wire.Tally) and r.subject == "module"]
    assert tally.scale == 2.0**10


def test_a_forward_that_is_repeated_for_ever_keeps_a_bounded_account() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer, every=1) as watched:
        for _ in range(9_000):
            model(torch.ones(1, 1))
        assert len(watched.tap._modules_tap._entries) <= 16_384
        with Looks() as more:
            model(torch.ones(1, 1)).sum().backward()
        assert more.count == 0
        watched.end()


class Looks(TorchFunctionMode):
    """Counts how often values are looked at."""

    def __init__(self) -> None:
        TorchFunctionMode.__init__(self)
        self.count = 0

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        self.count += func is torch.aminmax
        return func(*args, **(kwargs or {}))


def test_losses_weights_and_random_draws_are_those_of_an_unwatched_training() -> None:
    courses = [Course(scaler=torch.amp.GradScaler("cpu", init_scale=2.0**24), overflows={9}) for _ in range(2)]
    draws = []
    for course, watched in zip(courses, (False, True), strict=True):
        torch.manual_seed(1)
        course.model.layers.insert(2, nn.Dropout(0.5))
        with watching(course.model, course.optimizer, course.scaler, every=1) if watched else nullcontext():
            course.run(30)
        draws.append(torch.rand(3))
    assert courses[0].losses == courses[1].losses
    assert torch.equal(*draws)
    for one, other in zip(courses[0].weights(), courses[1].weights(), strict=True):
        assert torch.equal(one, other)


def setups(records: Sequence[wire.Record]) -> list[dict[str, Any]]:
    return [json.loads(record.data) for record in records if isinstance(record, wire.Setup)]


def test_autocast_and_the_formats_that_modules_answer_in_are_told() -> None:
    class Island(nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows.float().softmax(-1)

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Island(), nn.Linear(WIDTH, WIDTH))

    def loss() -> torch.Tensor:
        with fp16():
            answer: torch.Tensor = model(torch.randn(2, WIDTH))
        return answer.float().sum()

    told = setups(trained(model, loss))[-1]
    assert told["autocast"] == {"cpu": "fp16"}
    # The island of fp32 is seen.
    assert told["modules"] == {"": "float16", "0": "float16", "1": "float32", "2": "float16"}


def test_autocast_that_is_off_is_told_as_off() -> None:
    model = nn.Linear(WIDTH, WIDTH)
    assert setups(trained(model, lambda: model(torch.ones(1, WIDTH)).sum()))[-1]["autocast"] == {"cpu": None}


def test_without_modules_nothing_hangs_and_nothing_is_told() -> None:
    course = Course(precision=fp32)
    recorder, edge = Recorder(), Edge()
    training = Training([course.model], [course.optimizer], None, modules=False)
    tap = TrainingTap(training, recorder, edge, every=1, clock=lambda: 1.0)
    assert no_hooks(course.model)
    course.run(2)
    tap.remove()
    records = recorder.drain()
    assert layouts(records)[0].modules == []
    assert tallies(records) == {}


def test_autocast_that_is_entered_inside_of_the_forward_is_told_too() -> None:
    class Casting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            with bf16():
                answer: torch.Tensor = self.inner(rows)
            return answer.float()

    model = Casting()
    told = setups(trained(model, lambda: model(torch.ones(1, WIDTH)).sum(), updates=3))
    assert [setup["autocast"] for setup in told] == [{"cpu": "bf16"}]


def test_autocast_is_told_where_only_the_parts_of_a_model_are_called() -> None:
    """As a framework does whose module is never called itself."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))

    def loss() -> torch.Tensor:
        with bf16():
            answer: torch.Tensor = model[1](model[0](torch.ones(1, WIDTH)))
        return answer.float().sum()

    assert [setup["autocast"] for setup in setups(trained(model, loss))] == [{"cpu": "bf16"}]


def test_what_a_closure_calls_is_heard() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        with bf16():
            loss: torch.Tensor = model(torch.ones(1, WIDTH)).float().sum()
        loss.backward()
        return loss

    with watching(model, optimizer, every=1) as watched:
        for _ in range(3):
            optimizer.step(closure)
        records = watched.end()
    assert setups(records)[-1]["autocast"] == {"cpu": "bf16"}
    assert tallies(records).keys() == {0, 1, 2}
    assert columns(records)["forward_ms"].keys() == columns(records)["backward_ms"].keys() == {0, 1, 2}
