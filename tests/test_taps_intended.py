"""The intended update, against torch's own optimizers stepping in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from scalescope.taps.weights.intended import intention, leaves_gradients, likeness
from scalescope.taps.weights.looked import looks

Make = Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer]
RULES: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 1e-3}),
    "sgd-decay-maximize": (torch.optim.SGD, {"lr": 1e-3, "weight_decay": 0.1, "maximize": True}),
    "sgd-momentum": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    "sgd-nesterov": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"lr": 1e-3}),
    "adam-decay-amsgrad-maximize": (
        torch.optim.Adam,
        {"lr": 1e-3, "weight_decay": 0.1, "amsgrad": True, "maximize": True},
    ),
    "adamw": (torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-6}),
    "adamw-amsgrad": (torch.optim.AdamW, {"lr": 1e-2, "amsgrad": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 1e-2}),
    "adagrad-decay": (
        torch.optim.Adagrad,
        {"lr": 1e-2, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-6, "initial_accumulator_value": 0.1},
    ),
    "adagrad-maximize": (torch.optim.Adagrad, {"lr": 1e-2, "maximize": True}),
}
FORMS: dict[str, dict[str, Any]] = {
    "for-loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "tensor-lr": {"lr": torch.tensor(1e-3, dtype=torch.float64)},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", RULES)
def test_the_intended_update_is_what_a_float64_step_does(rule: str, form: str) -> None:
    kind, options = RULES[rule]
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(7, 5, dtype=torch.float64))
    optimizer = kind([parameter], **{**options, **FORMS[form]})
    (look,) = looks([parameter])
    for _ in range(4):
        parameter.grad = torch.randn_like(parameter)
        intended = intention(optimizer, optimizer.param_groups[0], [(parameter, look)])
        assert intended is not None
        before, gradient = parameter.detach().clone(), parameter.grad.clone()
        optimizer.step()
        update = intended.of(before.reshape(-1), gradient.reshape(-1))
        torch.testing.assert_close(update, (parameter.detach() - before).reshape(-1), rtol=1e-9, atol=1e-12)


def test_the_state_is_that_before_the_step() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    (look,) = looks([parameter])
    parameter.grad = torch.ones(3)
    optimizer.step()
    intended = intention(optimizer, optimizer.param_groups[0], [(parameter, look)])
    assert intended is not None
    first = intended.of(torch.ones(3).double(), torch.ones(3).double())
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 7.0
    assert torch.equal(intended.of(torch.ones(3).double(), torch.ones(3).double()), first)


class Halfway(torch.optim.SGD):
    """A third party's own rule."""


def test_a_subclass_may_follow_a_rule_of_its_own() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = Halfway([parameter], lr=0.1)
    (look,) = looks([parameter])
    assert intention(optimizer, optimizer.param_groups[0], [(parameter, look)]) is None
    assert not leaves_gradients(optimizer)


def test_asking_makes_no_state() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    (look,) = looks([parameter])
    intention(optimizer, optimizer.param_groups[0], [(parameter, look)])
    assert not optimizer.state


def test_a_nesterov_step_changes_its_gradients() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    assert leaves_gradients(torch.optim.SGD([parameter], lr=0.1, momentum=0.9))
    assert not leaves_gradients(torch.optim.SGD([parameter], lr=0.1, momentum=0.9, nesterov=True))


def test_parameters_whose_counts_of_steps_only_a_device_knows_are_looked_at_together() -> None:
    parameters = [torch.nn.Parameter(torch.ones(size, device="meta")) for size in (3, 2)]
    optimizer = torch.optim.Adam(parameters, lr=0.1)
    for parameter in parameters:
        moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.ones((), device="meta"), **moments}
    assert len({likeness(optimizer, parameter) for parameter in parameters}) == 1
    together = intention(optimizer, optimizer.param_groups[0], list(zip(parameters, looks(parameters), strict=True)))
    assert together is not None
    assert isinstance(together.before.steps, torch.Tensor)
    assert together.before.steps.shape == (5,)


@pytest.mark.parametrize("rule", ["adamw", "adam-decay-amsgrad-maximize", "adagrad-decay"])
def test_a_count_of_steps_for_each_element_gives_what_one_for_all_gives(rule: str) -> None:
    kind, options = RULES[rule]
    torch.manual_seed(0)
    early, late = (torch.nn.Parameter(torch.randn(4, dtype=torch.float64)) for _ in range(2))
    optimizer = kind([early, late], **options)
    for parameters in ([late], [late], [early, late]):
        for parameter in (early, late):
            parameter.grad = torch.randn_like(parameter) if any(parameter is p for p in parameters) else None
        optimizer.step()
    group, (look, _) = optimizer.param_groups[0], looks([early, late])
    alone = [intention(optimizer, group, [(parameter, look)]) for parameter in (early, late)]
    weights, gradient = torch.randn(2, 4, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    parts = [one.of(*pair) for one, *pair in zip(alone, weights, gradient, strict=True) if one is not None]
    together = intention(optimizer, group, [(early, look), (late, look)])
    assert together is not None
    steps = torch.tensor([1.0] * 4 + [3.0] * 4, dtype=torch.float64)
    joint = together._replace(before=together.before._replace(steps=steps))
    assert torch.equal(joint.of(weights.reshape(-1), gradient.reshape(-1)), torch.cat(parts))
