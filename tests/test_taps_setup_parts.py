"""The parts of a set-up that are read: optimizer state, memory, switches, and what is odd about the parameters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from scalescope.taps.setup.flags import flags
from scalescope.wire import Record, Setup
from torch import nn

from tests.small_training import Watched, watching


def told(records: Sequence[Record]) -> list[dict[str, Any]]:
    return [json.loads(record.data) for record in records if isinstance(record, Setup)]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, updates: int) -> None:
    for _ in range(updates):
        optimizer.zero_grad()
        dtype = next(model.parameters()).dtype
        model(torch.ones(2, 4, dtype=dtype)).float().square().mean().backward()
        optimizer.step()


def part(model: nn.Module, optimizer: torch.optim.Optimizer, name: str, *, updates: int = 2) -> Any:
    """What is told of ``name`` at the end."""
    with watching(model, optimizer, every=1) as watched:
        train(model, optimizer, updates)
        return told(watched.end())[-1].get(name)


@pytest.mark.parametrize(
    ("dtype", "eps", "held", "lost"),
    [
        (torch.float16, 1e-8, 0.0, True),
        (torch.float16, 1e-6, 1.0132789611816406e-06, False),
        (torch.bfloat16, 1e-8, 1.0011717677116394e-08, False),
        (torch.float32, 1e-8, 9.99999993922529e-09, False),
        (torch.float16, 0.0, 0.0, False),
    ],
)
def test_an_eps_is_told_with_what_it_becomes(dtype: torch.dtype, eps: float, held: float, lost: bool) -> None:
    model = nn.Linear(4, 4, dtype=dtype)
    (row,) = part(model, torch.optim.AdamW(model.parameters(), eps=eps), "optimizer_state")
    name = str(dtype).removeprefix("torch.")
    assert row["dtypes"] == {"exp_avg": name, "exp_avg_sq": name}
    assert (row["eps"], row["eps_in_format"], row["eps_format"], row["eps_lost"]) == (eps, held, name, lost)


def test_each_group_of_each_optimizer_has_its_row_and_one_without_state_has_none() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    groups: list[dict[str, Any]] = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "eps": 1e-6}]
    optimizer = torch.optim.Adam(groups)
    rows = part(model, optimizer, "optimizer_state")
    assert [(row["optimizer"], row["group"], row["eps"]) for row in rows] == [("Adam", 0, 1e-8), ("Adam", 1, 1e-6)]
    assert part(model, torch.optim.SGD(model.parameters(), lr=0.1), "optimizer_state") == []


def test_the_state_is_read_anew_when_it_has_come() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer, every=1) as watched:
        train(model, optimizer, 1)
        optimizer.param_groups[0]["momentum"] = 0.9
        train(model, optimizer, 70)
        first, *_, last = told(watched.end())
    assert first["optimizer_state"] == []
    assert last["optimizer_state"] == [{"optimizer": "SGD", "group": 0, "dtypes": {"momentum_buffer": "float32"}}]


def test_bytes_count_each_tensor_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4, affine=False))
    model.again = model[0]
    found = part(model, torch.optim.Adam(model.parameters()), "bytes")
    assert (found["parameters"], found["gradients"]) == (64, 64)
    assert found["optimizer_state"] == 2 * 64 + 4
    assert found["buffers"] == 4 * 4 + 4 * 4 + 8
    assert found["peak_of"] == "process"
    assert 10**7 < found["peak"] < 10**11


def test_tied_and_frozen_parameters_are_told() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model[1].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert part(model, optimizer, "tied") == [["0.weight", "1.weight"]]
    assert part(model, optimizer, "requires_no_grad") == 1


class Forking(nn.Module):
    """Has a layer that takes part only where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.late = nn.Linear(4, 4), nn.Linear(4, 4)
        self.fork = False

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.used(batch)
        return self.late(found) if self.fork else found


@pytest.fixture
def forking() -> Iterator[tuple[Forking, torch.optim.Optimizer, Watched]]:
    model = Forking()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer, every=5) as watched:
        yield model, optimizer, watched


def test_a_parameter_that_never_gets_a_gradient_is_named_until_it_gets_one(
    forking: tuple[Forking, torch.optim.Optimizer, Watched],
) -> None:
    model, optimizer, watched = forking
    train(model, optimizer, 100)
    model.fork = True
    train(model, optimizer, 100)
    first, second, *_, last = told(watched.end())
    assert "without_gradient" not in first
    assert second["without_gradient"] == ["late.weight", "late.bias"]
    assert "without_gradient" not in last


def test_where_no_parameter_gets_a_gradient_all_are_named() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer, every=5) as watched:
        for _ in range(40):
            optimizer.step()
        assert told(watched.end())[-1]["without_gradient"] == ["weight", "bias"]


def test_one_gradient_between_two_samples_is_enough(
    forking: tuple[Forking, torch.optim.Optimizer, Watched],
) -> None:
    model, optimizer, watched = forking
    train(model, optimizer, 7)
    model.fork = True
    train(model, optimizer, 1)
    model.fork = False
    train(model, optimizer, 100)
    assert not any("without_gradient" in data for data in told(watched.end()))


def test_a_frozen_parameter_wants_no_gradient() -> None:
    model = Forking()
    model.late.requires_grad_(False)
    assert part(model, torch.optim.SGD(model.parameters(), lr=0.1), "without_gradient", updates=100) is None


def test_the_switches_are_told_and_one_that_changes_is_told_again() -> None:
    assert flags()["float32_matmul_precision"] == "highest"
    assert flags()["fp16_reduced_precision_reduction"] is True
    torch.use_deterministic_algorithms(True)
    try:
        assert flags()["deterministic"] is True
    finally:
        torch.use_deterministic_algorithms(False)
