"""The adapter of Megatron, on stand-ins of what it reads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from scalescope import SettingError
from scalescope.integrations import megatron
from scalescope.packing import unpack
from torch import nn

from tests.deepspeed_stand_ins import half
from tests.megatron_stand_ins import (
    ChainedOptimizer,
    DistributedOptimizer,
    DynamicGradScaler,
    Float16Module,
    Float16Optimizer,
    train,
)
from tests.small_server import Shelf, SmallServer, farewell
from tests.small_training import Chain, Watched, columns, events, samples, watching

pytestmark = pytest.mark.usefixtures("plain_environment")

Optimizer = Float16Optimizer | ChainedOptimizer


def alone(model: nn.Module) -> Optimizer:
    return Float16Optimizer(list(model.parameters()), DynamicGradScaler(1024.0))


def chained(model: nn.Module) -> Optimizer:
    parameters, scaler = list(model.parameters()), [DynamicGradScaler(1024.0), DynamicGradScaler(1024.0)]
    return ChainedOptimizer([Float16Optimizer(parameters[:4], scaler[0]), Float16Optimizer(parameters[4:], scaler[1])])


def distributed(model: nn.Module) -> Optimizer:
    return DistributedOptimizer(list(model.parameters()), DynamicGradScaler(1024.0))


KINDS = pytest.mark.parametrize("make", [alone, chained, distributed])
Make = Callable[[nn.Module], Optimizer]


@contextmanager
def watched(optimizer: Optimizer, model: Chain, *, every: int = 10) -> Iterator[Watched]:
    with watching(model, megatron._standing_in_for(optimizer, [model]), every=every) as seen:
        yield seen


@pytest.mark.parametrize("make", [alone, distributed])
def test_every_update_is_recorded_with_what_the_scaler_made_of_it(make: Make) -> None:
    model = half()
    optimizer = make(model)
    with watched(optimizer, model) as seen:
        train(optimizer, model, 9, overflows=[1, 2])
        found = columns(seen.end())
    assert list(found["scale"].values()) == [1024, 1024, 1024, 512, 512, 512, 512, 1024, 1024]
    assert list(found["skipped"].values()) == [0, 1, 1, 0, 0, 0, 0, 0, 0]
    assert list(found["growth_tracker"].values()) == [0, 1, 0, 0, 1, 2, 3, 0, 1]
    assert list(found["hysteresis"].values()) == [2, 2, 1, 0, 0, 0, 0, 2, 2]
    assert list(found["learning_rate"].values()) == [0.01] * 9
    assert list(found["global_grad_norm"]) == list(found["num_zeros_in_grad"]) == [0, 3, 4, 5, 6, 7, 8]


@KINDS
def test_a_skip_names_the_first_parameter_in_backward_order(make: Make) -> None:
    model = half()
    optimizer = make(model)
    with watched(optimizer, model) as seen:
        train(optimizer, model, 4, overflows=[2])
        records = seen.end()
    (step, skip), *others = events(records, "skip").items()
    assert (step, others) == (2, [])
    assert skip["parameter"] in ("layers.2.bias", "layers.2.weight")
    nonfinite = skip["nonfinite"]
    assert isinstance(nonfinite, dict)
    assert "layers.3.weight" not in nonfinite


@KINDS
def test_gradients_are_measured_as_they_were_scaled_and_skipped_ones_too(make: Make) -> None:
    model = half()
    optimizer = make(model)
    with watched(optimizer, model, every=2) as seen:
        train(optimizer, model, 4, overflows=[1])
        records = seen.end()
    norms, taken = columns(records)["global_grad_norm"], samples(records)
    assert {step: sample.reason for step, sample in taken.items()}[1] == "skip"
    for step, norm in norms.items():
        if step in taken:
            squares = unpack(taken[step].table).sum_squares.sum()
            assert norm == pytest.approx(np.sqrt(squares) / 1024, rel=1e-5)
    # The last layer comes before the one that overflowed: what it has is what it had while it was scaled.
    last = unpack(taken[1].table).amax[-2]
    assert 0.5 < last / unpack(taken[0].table).amax[-2] < 2


@KINDS
def test_training_is_the_same_to_the_bit(make: Make) -> None:
    models = half(), half()
    losses = train(make(models[0]), models[0], 8, overflows=[1])
    optimizer = make(models[1])
    with watched(optimizer, models[1], every=1) as seen:
        assert train(optimizer, models[1], 8, overflows=[1]) == losses
        seen.drain()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)


def test_in_bf16_there_may_be_no_scaler() -> None:
    model = half()
    optimizer = Float16Optimizer(list(model.parameters()), None)
    with watched(optimizer, model) as seen:
        train(optimizer, model, 2)
        found = columns(seen.end())
    assert "scale" not in found
    assert list(found["skipped"].values()) == [0, 0]
    assert len(found["global_grad_norm"]) == 2


def test_what_an_optimizer_does_not_have_is_said_once_and_nothing_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    class Bare:
        def step(self) -> str:
            return "stepped"

    bare, model = Bare(), half()
    standing = megatron._standing_in_for(bare, [model])
    with caplog.at_level(logging.WARNING, "scalescope"), watching(model, standing) as seen:
        assert (bare.step(), bare.step()) == ("stepped", "stepped")
        assert list(columns(seen.end())["skipped"].values()) == [0, 0]
    (line,) = caplog.messages
    assert "Bare is not recorded: the loss scale" in line
    assert "the learning rate" in line
    assert "gradients" in line


def test_one_call_watches_a_wrapped_model(server: SmallServer, shelf: Shelf) -> None:
    model = half()
    optimizer = alone(model)
    with megatron.watch(optimizer, [Float16Module(model)], url=server.url, name="gpt"):
        train(optimizer, model, 4, overflows=[1])
    hello, layout = shelf.hellos[0], shelf.records[0]
    assert farewell(shelf.records).reason == "finished"
    assert hello.scaler is not None
    assert (hello.scaler.name, hello.scaler.scale, hello.scaler.growth_interval) == ("DynamicGradScaler", 1024.0, 4)
    assert [each.name for each in hello.optimizers] == ["Float16Optimizer"]
    assert layout.parameters[0].name == "layers.0.weight"  # type: ignore[union-attr]
    assert list(columns(shelf.records)["skipped"].values()) == [0, 1, 0, 0]
    assert "step" not in vars(optimizer)


def test_what_cannot_step_is_refused() -> None:
    with pytest.raises(SettingError, match="optimizer: expected a MegatronOptimizer"):
        megatron.watch(None, half())
