"""The adapter of DeepSpeed, on stand-ins of what it reads."""

from __future__ import annotations

import copy
import json
import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from scalescope import Scope, SettingError
from scalescope.integrations import deepspeed
from scalescope.integrations.deepspeed_gradients import held
from scalescope.integrations.deepspeed_scaling import global_norm, scaling
from scalescope.packing import unpack

from tests.deepspeed_stand_ins import DynamicLossScaler, Stepping, WithoutZero, Zero, engine, half, train
from tests.small_server import Shelf, SmallServer, farewell
from tests.small_training import Watched, columns, events, layouts, samples, watching

pytestmark = pytest.mark.usefixtures("plain_environment")


@contextmanager
def watched(optimizer: Stepping, *, every: int = 10) -> Iterator[Watched]:
    standing = deepspeed._standing_in_for(optimizer, optimizer.model)
    with watching(optimizer.model, standing, every=every) as seen:
        yield seen


@pytest.mark.parametrize("kind", [WithoutZero, Zero])
def test_every_update_is_recorded_with_what_the_scaler_made_of_it(kind: type[Stepping]) -> None:
    optimizer = kind(half(), DynamicLossScaler(1024.0, hysteresis=2))
    with watched(optimizer) as seen:
        train(optimizer, 8, overflows=[1, 2])
        found = columns(seen.end())
    assert list(found["scale"].values()) == [1024, 1024, 1024, 512, 512, 512, 512, 512]
    assert list(found["skipped"].values()) == [0, 1, 1, 0, 0, 0, 0, 0]
    assert list(found["growth_tracker"].values()) == [0, 1, 0, 0, 1, 2, 3, 4]
    assert list(found["hysteresis"].values()) == [2, 2, 1, 1, 1, 1, 1, 1]
    assert list(found["learning_rate"].values()) == [0.01] * 8
    assert optimizer.loss_scaler.cur_scale == 1024


@pytest.mark.parametrize("kind", [WithoutZero, Zero])
def test_a_skip_names_the_first_parameter_in_backward_order(kind: type[Stepping]) -> None:
    optimizer = kind(half(), DynamicLossScaler(1024.0))
    with watched(optimizer) as seen:
        train(optimizer, 4, overflows=[2])
        records = seen.end()
    (step, skip), *others = events(records, "skip").items()
    assert (step, others) == (2, [])
    assert (skip["scale"], skip["next_scale"]) == (1024.0, 512.0)
    assert skip["parameter"] in ("layers.2.bias", "layers.2.weight")
    nonfinite = skip["nonfinite"]
    assert isinstance(nonfinite, dict)
    assert "layers.3.weight" not in nonfinite


@pytest.mark.parametrize("kind", [WithoutZero, Zero])
def test_the_gradients_are_measured_scaled_and_whole(kind: type[Stepping]) -> None:
    optimizer = kind(half(), DynamicLossScaler(1024.0))
    with watched(optimizer, every=1) as seen:
        train(optimizer, 3)
        records = seen.end()
    found = columns(records)["global_grad_norm"]
    assert [parameter.name for parameter in layouts(records)[-1].parameters][:2] == ["layers.0.weight", "layers.0.bias"]
    for step, sample in samples(records).items():
        table = unpack(sample.table)
        assert table.numel.tolist() == [64, 8] * 4
        assert sample.micro_batches == (None if kind is Zero else 1)
        assert found[step] == pytest.approx(np.sqrt(table.sum_squares.sum()) / 1024, rel=1e-6)


@pytest.mark.parametrize("kind", [WithoutZero, Zero])
def test_training_is_the_same_to_the_bit(kind: type[Stepping]) -> None:
    alone, heard = (kind(half(), DynamicLossScaler(1024.0)) for _ in range(2))
    losses = train(alone, 8, overflows=[1])
    with watched(heard, every=1) as seen:
        assert train(heard, 8, overflows=[1]) == losses
        seen.drain()
    for one, other in zip(alone.model.parameters(), heard.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_partition_that_does_not_match_its_parameters_names_nobody() -> None:
    optimizer = Zero(half(), DynamicLossScaler(1024.0))
    optimizer.params_in_partition[0].insert(2, torch.nn.Parameter(torch.zeros(5)))
    with watched(optimizer) as seen:
        train(optimizer, 2, overflows=[1])
        records = seen.end()
    skip = events(records, "skip")[1]
    assert (skip["parameter"], skip["nonfinite"]) == (None, {})
    assert "cannot be told apart" in str(skip["reason"])


def test_of_gradients_that_are_not_at_hand_nothing_is_measured_and_a_skip_says_why() -> None:
    optimizer = Zero(half(), DynamicLossScaler(1024.0))
    optimizer.params_in_partition = [[]]
    with watched(optimizer, every=1) as seen:
        train(optimizer, 2, overflows=[1])
        records = seen.end()
    assert samples(records) == {}
    assert "cannot be told apart" in str(events(records, "skip")[1]["reason"])


def test_of_a_partition_the_ends_may_be_in_part() -> None:
    model = half()
    weight, bias, following = list(model.parameters())[:3]
    optimizer = Zero(model, DynamicLossScaler(1.0))
    optimizer.params_in_partition = [[weight, bias, following]]
    optimizer.averaged_gradients = {0: [torch.ones(10), torch.ones(8), torch.ones(20)], 1: None}
    assert [(whole.numel(), part.numel()) for whole, part in held(optimizer)] == [(64, 10), (8, 8), (64, 20)]


def test_a_step_that_raises_at_the_lowest_scale_is_recorded_and_raises() -> None:
    optimizer = Zero(half(), DynamicLossScaler(2.0, lowest=2.0))
    with watched(optimizer) as seen:
        with pytest.raises(RuntimeError, match="lowest"):
            train(optimizer, 4, overflows=[2])
        records = seen.end()
    assert list(columns(records)["skipped"].values()) == [0, 0, 1]
    assert events(records, "skip")[2]["next_scale"] == 2.0


def test_in_bf16_there_is_no_scale() -> None:
    still = DynamicLossScaler(1.0)
    still.dynamic = False
    optimizer = Zero(half(), still)
    assert scaling(optimizer).scale is None
    with watched(optimizer) as seen:
        train(optimizer, 2)
        found = columns(seen.end())
    assert "scale" not in found
    assert list(found["skipped"].values()) == [0, 0]


def test_the_norm_is_divided_by_the_scale_of_its_own_update() -> None:
    after = type("Stage3", (), {"_global_grad_norm": 1.0, "fp32_partitioned_groups_flat": []})()
    assert global_norm(after, 512.0, 1024.0) == 2.0
    undivided = type("Unfused", (), {"_global_grad_norm": 512.0, "fp32_groups": []})()
    assert global_norm(undivided, 512.0, 1024.0) == 1.0
    before = type("Stage2", (), {"_global_grad_norm": 1.0, "bit16_groups": []})()
    assert global_norm(before, 512.0, 1024.0) == 1.0


def test_a_watched_optimizer_copies_and_pickles_and_has_its_methods_back() -> None:
    optimizer = WithoutZero(half(), DynamicLossScaler(1024.0))
    with watched(optimizer) as seen:
        others = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
        for other in others:
            train(other, 2)
        assert "scale" not in columns(seen.drain())
    assert "step" not in vars(optimizer)
    assert "_update_scale" not in vars(optimizer)


def test_what_an_optimizer_does_not_have_is_said_once_and_nothing_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    class Bare:
        def __init__(self, model: torch.nn.Module) -> None:
            self.model = model

        def step(self) -> None: ...

    model = half()
    standing = deepspeed._standing_in_for(Bare(model), model)
    with caplog.at_level(logging.WARNING, "scalescope"), watching(model, standing) as seen:
        standing.library._theirs.step()  # type: ignore[attr-defined]
        standing.library._theirs.step()  # type: ignore[attr-defined]
        assert list(columns(seen.end())["skipped"].values()) == [0, 0]
    (line,) = caplog.messages
    assert "Bare is not recorded: the loss scale" in line
    assert "_global_grad_norm" in line
    assert "gradients" in line


def test_one_call_watches_an_engine(server: SmallServer, shelf: Shelf) -> None:
    optimizer = Zero(half(), DynamicLossScaler(1024.0))
    with deepspeed.watch(engine(optimizer, optimizer.model), url=server.url, config={"zero": 2}):
        train(optimizer, 4, overflows=[1])
    hello, end = shelf.hellos[0], farewell(shelf.records)
    assert end.reason == "finished"
    assert hello.scaler is not None
    assert (hello.scaler.name, hello.scaler.scale, hello.scaler.growth_interval) == ("DynamicLossScaler", 1024.0, 4)
    assert [(each.name, each.values["momentum"]) for each in hello.optimizers] == [("Zero", 0.9)]
    assert json.loads(hello.config) == {"zero": 2}
    assert list(columns(shelf.records)["skipped"].values()) == [0, 1, 0, 0]


def test_watching_an_engine_again_closes_the_scope_before(server: SmallServer, shelf: Shelf) -> None:
    optimizer = Zero(half(), DynamicLossScaler(1024.0))
    first = deepspeed.watch(engine(optimizer, optimizer.model), url=server.url)
    with deepspeed.watch(engine(optimizer, optimizer.model), url=server.url) as second:
        assert first.run_id != second.run_id
        train(optimizer, 2)
    assert len(columns(shelf.records)["skipped"]) == 2


def test_an_optimizer_of_torch_is_watched_as_torchs(server: SmallServer, shelf: Shelf) -> None:
    model = half().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with deepspeed.watch(engine(optimizer, model), url=server.url):
        model(torch.randn(4, 8)).mean().backward()
        optimizer.step()
    assert [each.name for each in shelf.hellos[0].optimizers] == ["SGD"]
    assert len(columns(shelf.records)["skipped"]) == 1


def test_an_engine_that_steps_nothing_is_not_watched_and_nothing_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Identity()
    with caplog.at_level(logging.WARNING, "scalescope"):
        scope = deepspeed.watch(engine(object(), model))
    assert type(scope) is Scope
    assert len(caplog.messages) == 1


def test_what_is_no_engine_is_refused() -> None:
    with pytest.raises(SettingError, match=r"engine: expected what deepspeed\.initialize"):
        deepspeed.watch(half())
