"""Two runs that dropped different elements are not compared."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from scalescope import wire
from scalescope.taps.probe.draws import Draws
from scalescope.taps.probe.precision import ProbeError
from torch import nn
from torch.nn import functional

from tests.small_training import watching


def reason(model: nn.Module, loss_fn: Callable[[], torch.Tensor]) -> str:
    """Why there is no probe of ``model``; empty where there is one."""
    with watching(model, torch.optim.SGD(model.parameters(), lr=0.1)) as ears:
        ears.tap.probe(loss_fn, dtype=torch.bfloat16)
        (probe,) = (record for record in ears.end() if isinstance(record, wire.Probe))
    told: str = json.loads(probe.data).get("reason", "")
    return told


@pytest.mark.parametrize("dropout", [nn.Dropout(0.5), nn.AlphaDropout(0.5)], ids=lambda m: type(m).__name__)
def test_masks_that_agree_are_compared(dropout: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(8, 64), dropout, nn.Linear(64, 1))
    assert reason(model, lambda: model(torch.ones(4, 8)).float().mean()) == ""


def test_a_generator_of_the_users_own_goes_on_and_is_noticed() -> None:
    model, own = nn.Linear(8, 8), torch.Generator().manual_seed(0)

    def loss() -> torch.Tensor:
        kept: torch.Tensor = model(torch.ones(4, 8)).float() * (torch.rand(4, 8, generator=own) - 0.5)
        return kept.mean()

    assert "different random numbers" in reason(model, loss)


def test_attention_that_drops_inside_its_kernel_is_refused() -> None:
    with Draws() as draws:
        query = torch.randn(1, 2, 8, 4)
        functional.scaled_dot_product_attention(query, query, query)
        assert len(draws.drawn) == 1
    # As the kernels of a device have it; the one of the CPU never drops.
    kernel = torch.ops.aten._scaled_dot_product_flash_attention.default
    with pytest.raises(ProbeError, match="inside of its kernel"):
        Draws()._note(kernel, (), 0.1)


def test_beside_a_compiled_model_nothing_may_be_drawn() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    model.compile(backend="aot_eager")

    def loss() -> torch.Tensor:
        value: torch.Tensor = model(torch.ones(4, 8)).float().mean()
        return value

    def evaluated() -> torch.Tensor:
        model.eval()
        return loss()

    assert "in its own way" in reason(model, loss)
    assert reason(model, evaluated) == ""
    assert model.training
