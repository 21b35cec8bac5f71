"""What updates did to the weights, against a float64 twin of each step, counted with numpy."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scalescope.numerics.formats import BF16, FP16, FloatFormat
from scalescope.rows import tallied
from scalescope.wire import Record, Tally
from torch import nn

from tests.small_training import watching

# With torch's own eps, which is 0 in fp16, Adam makes NaNs there.
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd-foreach": (torch.optim.SGD, {"lr": 1e-3, "foreach": True}),
    "sgd-momentum-for-loop": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9, "weight_decay": 0.01, "foreach": False}),
    # Without momentum: torch's fused SGD begins with a buffer in half precision that it has written only in part.
    "sgd-fused": (torch.optim.SGD, {"lr": 1e-3, "weight_decay": 0.01, "fused": True}),
    "sgd-nesterov-foreach": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9, "nesterov": True, "foreach": True}),
    "adam-for-loop": (torch.optim.Adam, {"lr": 1e-3, "weight_decay": 0.01, "eps": 1e-4, "foreach": False}),
    "adamw-foreach": (torch.optim.AdamW, {"lr": 1e-4, "eps": 1e-4, "foreach": True}),
    "adamw-fused": (torch.optim.AdamW, {"lr": 1e-4, "eps": 1e-4, "amsgrad": True, "fused": True}),
    "adagrad-foreach": (torch.optim.Adagrad, {"lr": 1e-4, "eps": 1e-4, "foreach": True}),
    "adagrad-fused": (torch.optim.Adagrad, {"lr": 1e-4, "eps": 1e-4, "lr_decay": 0.1, "fused": True}),
}
SKIPPED = 4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


def model_of(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(dtype)


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    dtype = next(model.parameters()).dtype
    batch = torch.randn(8, 16, generator=generator, dtype=torch.float64).to(dtype)
    loss: torch.Tensor = model(batch).square().mean()
    return loss


def round_to(values: NDArray[np.float64], target: FloatFormat) -> NDArray[np.float64]:
    exponents = np.maximum(np.frexp(values)[1] - 1, target.min_normal_exponent) - target.fraction_bits
    return np.asarray(np.ldexp(np.rint(np.ldexp(values, -exponents)), exponents))


def absorbed(weights: NDArray[np.float64], updates: NDArray[np.float64], target: FloatFormat) -> int:
    held = round_to(weights, target)
    return int(((updates != 0) & (round_to(held + updates, target) == held)).sum())


class Twin:
    """The step that is about to be taken, taken in float64 from the same weights, gradients and state."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[torch.Tensor],
        options: dict[str, Any],
        scale: float = 1.0,
    ) -> None:
        self.before = [p.detach().double().clone() for p in parameters]
        self.gradients = [p.grad.detach().double() / scale for p in parameters if p.grad is not None]
        twins = [nn.Parameter(weights.clone()) for weights in self.before]
        twin = type(optimizer)(twins, **{k: v for k, v in options.items() if k not in ("foreach", "fused")})
        for parameter, other, gradient in zip(parameters, twins, self.gradients, strict=True):
            other.grad = gradient.clone()
            for name, value in optimizer.state.get(parameter, {}).items():
                held = isinstance(value, torch.Tensor)
                twin.state[other][name] = value.double().clone() if held and name != "step" else copy.deepcopy(value)
        twin.step()
        self.updates = [p.detach() - weights for p, weights in zip(twins, self.before, strict=True)]

    def counts(self, parameters: Sequence[torch.Tensor]) -> dict[str, list[float]]:
        """The columns of a tally, now that the step was taken."""
        found: dict[str, list[float]] = {}
        rows = zip(parameters, self.before, self.gradients, self.updates, strict=True)
        for parameter, before, gradient, update in rows:
            change, weights = (parameter.detach().double() - before).numpy(), before.numpy()
            narrow = parameter.dtype in (torch.float16, torch.bfloat16)
            aim = update.numpy() if narrow else change
            row = {
                "looked": change.size,
                "update_squares": np.square(change).sum(),
                "weight_squares": np.square(weights).sum(),
                "with_gradient": np.count_nonzero(gradient.numpy()),
                "unchanged": np.count_nonzero((gradient.numpy() != 0) & (change == 0)),
                "intended": np.count_nonzero(aim),
                "absorbed_fp16": absorbed(weights, aim, FP16),
                "absorbed_bf16": absorbed(weights, aim, BF16),
            }
            for name, value in row.items():
                found.setdefault(name, []).append(float(value))
        return found


def tallies(records: Sequence[Record]) -> dict[int, dict[str, list[float]]]:
    """Step -> column -> a value for each parameter, in order of index."""
    found = {}
    for record in records:
        if isinstance(record, Tally) and record.subject == "parameter":
            indexes, columns = tallied(record)
            order = np.argsort(indexes)
            found[record.step] = {name: values[order].tolist() for name, values in columns.items()}
    return found


def equal(told: dict[str, list[float]], truth: dict[str, list[float]]) -> None:
    for name, values in truth.items():
        rel = 1e-6 if name.endswith("squares") else 0
        assert told[name] == pytest.approx(values, rel=rel, abs=0), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_count_is_that_of_a_float64_step_to_the_element(name: str, dtype: str) -> None:
    kind, options = OPTIMIZERS[name]
    model = model_of(DTYPES[dtype])
    parameters = list(model.parameters())
    optimizer = kind(parameters, **options)
    truth = {}
    with watching(model, optimizer, every=3) as watched:
        for step in range(10):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            twin = Twin(optimizer, parameters, options)
            optimizer.step()
            truth[step] = twin.counts(parameters)
        told = tallies(watched.end())
    assert list(told) == [0, 3, 6, 9]
    for step, columns in told.items():
        equal(columns, truth[step])


def test_an_observed_difference_reads_nothing_where_most_updates_are_absorbed() -> None:
    torch.manual_seed(0)
    model = nn.Linear(256, 64, bias=False, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watching(model, optimizer, every=1) as watched:
        model(torch.randn(32, 256, dtype=torch.bfloat16)).square().mean().mul(15).backward()
        twin = Twin(optimizer, [model.weight], {"lr": 1e-3})
        optimizer.step()
        truth = twin.counts([model.weight])
        (told,) = tallies(watched.end()).values()
    change = (model.weight.detach().double() - twin.before[0]).numpy()
    assert absorbed(twin.before[0].numpy(), change, BF16) == 0
    equal(told, truth)
    assert told["absorbed_bf16"][0] / told["intended"][0] == pytest.approx(0.77, abs=0.005)


class Unknown(torch.optim.SGD):
    """What a third party makes of it: its rule is not known, and it throws its gradients away."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad.sign() * group["lr"])
                    parameter.grad.zero_()


def test_of_an_unknown_optimizer_the_unchanged_elements_are_told_and_no_guess() -> None:
    model = model_of(torch.bfloat16)
    optimizer = Unknown(model.parameters(), lr=1e-4)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with watching(model, optimizer, every=1) as watched:
        loss_of(model, 0).backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        optimizer.step()
        (told,) = tallies(watched.end()).values()
    rows = list(zip(model.parameters(), before, gradients, strict=True))
    assert told["with_gradient"] == [int((gradient != 0).sum()) for _, _, gradient in rows]
    assert told["unchanged"] == [int(((gradient != 0) & (now == was)).sum()) for now, was, gradient in rows]
    assert sum(told["unchanged"]) > 0
    for name in ("intended", "absorbed_fp16", "absorbed_bf16"):
        assert np.isnan(told[name]).all()


def test_of_fp32_weights_what_an_unknown_optimizer_did_is_seen() -> None:
    model = model_of(torch.float32)
    optimizer = Unknown(model.parameters(), lr=1e-4)
    before = [parameter.detach().double() for parameter in model.parameters()]
    with watching(model, optimizer, every=1) as watched:
        loss_of(model, 0).backward()
        optimizer.step()
        (told,) = tallies(watched.end()).values()
    changes = [now.detach().double() - was for now, was in zip(model.parameters(), before, strict=True)]
    assert told["intended"] == [int((change != 0).sum()) for change in changes]
    pairs = list(zip(before, changes, strict=True))
    assert told["absorbed_bf16"] == [absorbed(was.numpy(), change.numpy(), BF16) for was, change in pairs]


@pytest.mark.parametrize("explicit", [False, True], ids=["implicit", "explicit"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_under_a_scaler_the_step_is_that_of_the_unscaled_gradients_and_a_skip_tells_nothing(
    name: str, explicit: bool
) -> None:
    kind, options = OPTIMIZERS[name]
    model = model_of(torch.bfloat16)
    parameters = list(model.parameters())
    optimizer = kind(parameters, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    truth = {}
    with watching(model, optimizer, scaler, every=1) as watched:
        for step in range(6):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            scaler.scale(loss * torch.inf if step == SKIPPED else loss).backward()
            if explicit:
                scaler.unscale_(optimizer)
            twin = Twin(optimizer, parameters, options, 1.0 if explicit else scaler.get_scale())
            scaler.step(optimizer)
            scaler.update()
            if step != SKIPPED:
                truth[step] = twin.counts(parameters)
        told = tallies(watched.end())
    assert list(told) == list(truth)
    for step, columns in told.items():
        equal(columns, truth[step])
