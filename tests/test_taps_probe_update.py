"""One update of both precisions side by side, against whole copies of the training that really step."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from scalescope import wire
from scalescope.taps.probe.result import ProbeResult
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tests.small_training import WIDTH, Course, Watched, bf16, fp16, fp32, watching


class Own(torch.optim.Optimizer):
    """An optimizer that nobody knows, with a moment of its own."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                kept = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
                kept.lerp_(parameter.grad, 0.5)
                parameter.add_(kept, alpha=-group["lr"])


OPTIMIZERS: dict[str, tuple[Callable[[nn.Module], torch.optim.Optimizer], set[str]]] = {
    "sgd": (lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), {"momentum_buffer"}),
    "adamw": (lambda model: torch.optim.AdamW(model.parameters(), lr=0.01), {"exp_avg", "exp_avg_sq"}),
    "adamw-fused": (lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, fused=True), {"exp_avg", "exp_avg_sq"}),
    "adagrad": (lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1), {"sum"}),
    "unknown": (lambda model: Own(model.parameters()), {"average"}),
}

REGISTERS = (register_optimizer_step_pre_hook, register_optimizer_step_post_hook)


def probed(ears: Watched, course: Course) -> ProbeResult:
    result = ears.tap.probe(lambda: loss_of(course.model, course), dtype=torch.float16, compare_update=True)
    assert result is not None
    return result


def loss_of(model: nn.Module, course: Course) -> torch.Tensor:
    loss: torch.Tensor = (model(course.batches[5]).float() - 1).square().mean() * 1e-3
    return loss


def stepped(course: Course, precision: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Copies of model and optimizer after one more update in ``precision``."""
    model, optimizer = copy.deepcopy((course.model, course.optimizer))
    optimizer.zero_grad()
    with precision():
        loss = loss_of(model, course)
    loss.backward()
    optimizer.step()
    return model, optimizer


def relative(own: torch.Tensor, reference: torch.Tensor) -> float:
    own_, reference_ = own.detach().double().numpy(), reference.detach().double().numpy()
    return float(np.linalg.norm(own_ - reference_) / np.linalg.norm(reference_))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_differences_are_those_of_two_trainings_that_step(kind: str) -> None:
    make, moments = OPTIMIZERS[kind]
    course = Course(make, precision=fp16)
    course.run(3)
    with watching(course.model, course.optimizer) as ears:
        result = probed(ears, course)
    sides = [stepped(course, precision) for precision in (fp16, fp32)]
    (low, low_optimizer), (high, high_optimizer) = sides
    before = dict(course.model.named_parameters())
    assert result.updates.keys() == before.keys()
    for name, told in result.updates.items():
        own, reference = low.get_parameter(name), high.get_parameter(name)
        expected = {
            "weight": relative(own, reference),
            "update": relative(own.double() - before[name].double(), reference.double() - before[name].double()),
        }
        expected |= {m: relative(low_optimizer.state[own][m], high_optimizer.state[reference][m]) for m in moments}
        assert told == pytest.approx(expected, rel=1e-6)


def test_of_weights_in_half_the_reference_shows_what_was_absorbed() -> None:
    model = nn.Linear(WIDTH, WIDTH).bfloat16()
    with torch.no_grad():
        model.weight.fill_(1.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.ones(2, WIDTH, dtype=torch.bfloat16)
    with watching(model, optimizer) as ears:
        result = ears.tap.probe(lambda: model(batch).float().mean(), compare_update=True)
    assert result is not None
    # The update is far below the spacing of bf16 at 1.5: none of it arrives.
    assert result.updates["weight"]["update"] == 1.0


def test_nothing_of_the_real_optimizer_changes() -> None:
    course = Course(OPTIMIZERS["adamw"][0], precision=fp16)
    course.run(3)
    groups = [dict(group) for group in course.optimizer.param_groups]
    before = copy.deepcopy((course.model.state_dict(), course.optimizer.state_dict()))
    tensors = [kept for state in course.optimizer.state.values() for kept in state.values()]
    versions = [tensor._version for tensor in tensors]
    with watching(course.model, course.optimizer) as ears:
        probed(ears, course)
    after = course.model.state_dict(), course.optimizer.state_dict()
    assert all(torch.equal(before[0][name], after[0][name]) for name in after[0])
    assert str(before[1]) == str(after[1])
    assert [tensor._version for tensor in tensors] == versions
    assert [list(group) for group in groups] == [list(group) for group in course.optimizer.param_groups]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_hooks_on_all_optimizers_hear_the_training_alone(kind: str) -> None:
    make, _ = OPTIMIZERS[kind]
    course, heard = Course(make), list[torch.optim.Optimizer]()
    hooks = [register(lambda optimizer, *_: heard.append(optimizer)) for register in REGISTERS]
    with watching(course.model, course.optimizer) as ears:
        course.run(2)
        assert probed(ears, course).updates
    for hook in hooks:
        hook.remove()
    assert heard == [course.optimizer] * 4


def test_an_optimizer_that_cannot_be_copied_costs_only_the_comparison_of_updates() -> None:
    course = Course(lambda model: torch.optim.LBFGS(model.parameters()), precision=bf16)
    with watching(course.model, course.optimizer) as ears:
        result = probed(ears, course)
        (probe,) = (record for record in ears.end() if isinstance(record, wire.Probe))
    assert result.updates == {}
    assert "cannot be copied" in result.no_updates
    assert json.loads(probe.data)["no_updates"] == result.no_updates
    assert result.parameters


def test_of_many_parameters_the_record_keeps_those_that_differ_most_and_counts_the_rest() -> None:
    model = nn.ParameterDict({f"{'x' * 80}{place}": nn.Parameter(torch.randn(4)) for place in range(300)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(4)

    def loss() -> torch.Tensor:
        return torch.stack([torch.nn.functional.linear(batch, weight) for weight in model.values()]).float().mean()

    with watching(model, optimizer) as ears:
        result = ears.tap.probe(loss, dtype=torch.float16, compare_update=True)
        (probe,) = (record for record in ears.end() if isinstance(record, wire.Probe))
    assert result is not None
    told = json.loads(probe.data)
    assert len(told["updates"]) + told["left_out"] == len(result.updates) == 300
    assert len(probe.data) <= 16_384
    kept = {name: result.updates[name]["update"] for name in told["updates"]}
    assert min(kept.values()) >= max(each["update"] for name, each in result.updates.items() if name not in kept)
