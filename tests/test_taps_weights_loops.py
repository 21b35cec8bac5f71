"""The counts of updates in unusual loops: right, or left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from scalescope.numerics.formats import BF16
from scalescope.taps.weights.looked import MOST
from scalescope.wire import Tally
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.small_training import watching
from tests.test_taps_weights import OPTIMIZERS, Twin, absorbed, equal, loss_of, model_of, tallies


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_a_sparse_gradient_only_what_the_weights_show_is_told(dtype: torch.dtype) -> None:
    table = nn.Embedding(50, 8, sparse=True, dtype=dtype)
    optimizer = torch.optim.SGD(table.parameters(), lr=1e-3)
    before = table.weight.detach().double()
    with watching(table, optimizer, every=1) as watched:
        table(torch.tensor([1, 2, 2])).float().square().sum().backward()
        optimizer.step()
        (told,) = tallies(watched.end()).values()
    change = (table.weight.detach().double() - before).numpy()
    assert told["update_squares"] == [pytest.approx(np.square(change).sum())]
    assert math.isnan(told["with_gradient"][0])
    if dtype == torch.float32:
        assert told["intended"] == [np.count_nonzero(change)] == [16]
        assert told["absorbed_bf16"] == [absorbed(before.numpy(), change, BF16)]
    else:
        assert math.isnan(told["intended"][0])


def test_parameters_that_are_frozen_empty_complex_or_without_a_gradient_are_left_out() -> None:
    model = nn.Module()
    model.used = nn.Parameter(torch.ones(3))
    model.empty = nn.Parameter(torch.ones(0))
    model.complex = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    model.unused = nn.Parameter(torch.ones(4))
    model.frozen = nn.Parameter(torch.ones(5), requires_grad=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer, every=1) as watched:
        (model.used.sum() + model.empty.sum() + model.complex.abs().sum()).backward()
        optimizer.step()
        (told,) = tallies(watched.end()).values()
    assert told["looked"] == [3.0]


def test_of_a_group_that_a_rate_of_0_holds_it_is_not_told_that_it_stays() -> None:
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 2, bias=False))
    held, trained = ([*each.parameters()] for each in model)
    groups: list[dict[str, Any]] = [{"params": held, "lr": 0.0}, {"params": trained}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    with watching(model, optimizer, every=1) as watched:
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        (told,) = tallies(watched.end()).values()
    assert told["update_squares"][0] == 0
    assert math.isnan(told["unchanged"][0])
    assert told["unchanged"][1] == 0


def test_a_parameter_of_two_optimizers_is_told_once_an_update() -> None:
    model = model_of(torch.float32)
    weight = next(model.parameters())
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3), torch.optim.Adam([weight], lr=1e-3)]
    with watching(model, optimizers, every=1) as watched:
        loss_of(model, 0).backward()
        before = weight.detach().clone()
        optimizers[0].step()
        first = (weight.detach() - before).double().square().sum().item()
        optimizers[1].step()
        (record,) = [record for record in watched.end() if isinstance(record, Tally) and record.subject == "parameter"]
    assert tallies([record])[0]["update_squares"][0] == pytest.approx(first)


def test_optimizers_that_take_turns_tell_of_their_own_parameters() -> None:
    models = [nn.Linear(2, 2, bias=False), nn.Linear(3, 3, bias=False)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    with watching(models, optimizers, every=1) as watched:
        for turn in (0, 1, 0):
            optimizers[turn].zero_grad()
            models[turn](torch.ones(1, 2 + turn)).sum().backward()
            optimizers[turn].step()
        told = tallies(watched.end())
    assert [columns["looked"] for columns in told.values()] == [[4.0], [9.0], [4.0]]


def closing_over(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Callable[[], torch.Tensor]:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if "nesterov" not in name])
def test_a_step_whose_closure_makes_the_gradients_is_counted_with_them(name: str) -> None:
    kind, options = OPTIMIZERS[name]
    model = model_of(torch.bfloat16)
    parameters = list(model.parameters())
    optimizer = kind(parameters, **options)
    truth = {}
    with watching(model, optimizer, every=1) as watched:
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            twin = Twin(optimizer, parameters, options)
            optimizer.step(closing_over(model, optimizer, step))  # type: ignore[arg-type]  # torch says float
            truth[step] = twin.counts(parameters)
        told = tallies(watched.end())
    assert list(told) == list(truth)
    for step, columns in told.items():
        equal(columns, truth[step])


def test_of_a_closure_that_runs_many_times_only_the_weights_are_told() -> None:
    model = model_of(torch.float32)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)
    with watching(model, optimizer, every=1) as watched:
        for step in range(3):
            before = [parameter.detach().double() for parameter in model.parameters()]
            optimizer.step(closing_over(model, optimizer, step))
        told = tallies(watched.end())[2]
    changes = [now.detach().double() - was for now, was in zip(model.parameters(), before, strict=True)]
    assert told["update_squares"] == [pytest.approx(float(change.square().sum())) for change in changes]
    assert told["intended"] == [int((change != 0).sum()) for change in changes]
    assert np.isnan(told["with_gradient"]).all()


def test_the_default_dtype_makes_no_difference() -> None:
    model = nn.Linear(63, 63, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with watching(model, optimizer, every=1) as watched:
            model(torch.ones(1, 63, dtype=torch.float32)).sum().backward()
            optimizer.step()
            (told,) = tallies(watched.end()).values()
    finally:
        torch.set_default_dtype(torch.float32)
    assert told["with_gradient"] == [63.0**2]


def test_an_update_of_nans_counts_nothing_as_meant() -> None:
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer, every=1) as watched:
        (model(torch.ones(1, 4)).sum() * torch.nan).backward()
        optimizer.step()
        (told,) = tallies(watched.end()).values()
    assert told["intended"] == [0.0]
    assert math.isnan(told["update_squares"][0])


def test_a_step_that_raises_leaves_nothing_behind() -> None:
    model = model_of(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    refuse = True

    def second(*_: object) -> None:
        if refuse:
            raise RuntimeError("no")

    with watching(model, optimizer, every=1) as watched:
        optimizer.register_step_pre_hook(second)
        loss_of(model, 0).backward()
        with pytest.raises(RuntimeError, match="no"):
            optimizer.step()
        for parameter in model.parameters():
            parameter.data.zero_()
        refuse = False
        optimizer.step()
        (told,) = tallies(watched.end()).values()
    assert told["weight_squares"] == [0.0] * 4


def test_optimizers_of_single_layers_look_at_no_more_together_than_one_of_all() -> None:
    layers = nn.ModuleList(nn.Linear(400, 400, bias=False) for _ in range(4))
    optimizers = [torch.optim.SGD(layer.parameters(), lr=1e-3) for layer in layers]
    with watching(layers, optimizers, every=1) as watched:
        sum(layer(torch.ones(1, 400)).sum() for layer in layers).backward()
        for optimizer in optimizers:
            optimizer.step()
        told = tallies(watched.end()).values()
    assert sum(sum(table["looked"]) for table in told) <= 2 * MOST


def test_of_a_large_parameter_a_part_is_looked_at_and_its_squares_are_estimated() -> None:
    torch.manual_seed(0)
    model = nn.Embedding(4 * MOST // 256, 256, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watching(model, optimizer, every=1) as watched:
        model.weight.grad = torch.randn_like(model.weight)
        twin = Twin(optimizer, [model.weight], {"lr": 1e-3})
        optimizer.step()
        (told,) = tallies(watched.end()).values()
    truth = twin.counts([model.weight])
    looked, whole = told["looked"][0], truth["looked"][0]
    assert MOST / 2 < looked < 2 * MOST < whole
    for name in ("update_squares", "weight_squares"):
        assert told[name] == pytest.approx(truth[name], rel=0.02)
    for name in ("intended", "absorbed_bf16", "unchanged"):
        assert told[name][0] / looked == pytest.approx(truth[name][0] / whole, abs=0.01)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_a_sharded_model_each_rank_tells_of_its_own_shards(tmp_path: Path, dtype: torch.dtype) -> None:
    whole = adam_tallies(model_of(dtype))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = model_of(dtype)
        fully_shard(model)
        assert adam_tallies(model) == whole
    finally:
        dist.destroy_process_group()


def adam_tallies(model: nn.Module) -> dict[int, dict[str, list[float]]]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, eps=1e-4)
    with watching(model, optimizer, every=1) as watched:
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
        return tallies(watched.end())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_state_and_random_numbers_are_as_without_for_every_optimizer(name: str) -> None:
    plain, watched_too = (trained(name, watch=watch) for watch in (False, True))
    for one, other in zip(plain, watched_too, strict=True):
        assert torch.equal(one, other)


def trained(name: str, *, watch: bool) -> Sequence[torch.Tensor]:
    """Weights, state and a random number after 50 updates."""
    kind, options = OPTIMIZERS[name]
    model = model_of(torch.bfloat16)
    optimizer = kind(model.parameters(), **options)
    with watching(model, optimizer, every=2) if watch else nullcontext():
        for step in range(50):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
    state = [value for each in optimizer.state.values() for value in each.values() if isinstance(value, torch.Tensor)]
    return [*[parameter.detach() for parameter in model.parameters()], *state, torch.rand(1)]
