"""The format of a gradient is read off the grid that its values lie on."""

from __future__ import annotations

import pytest
import torch
from scalescope.taps.backward.grid import check_grid

torch.manual_seed(0)
RANDOM = torch.randn(1000)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        (RANDOM, "fp32"),
        (RANDOM.half().float(), "fp16"),
        (RANDOM.bfloat16().float(), "bf16"),
        ((RANDOM * 1e-6).half().float(), "fp16"),  # subnormals of few bits: on both grids
        ((RANDOM * 1e30).bfloat16().float(), "bf16"),  # outside fp16's range
        (RANDOM.half().float() * 2.0**20, "fp32"),  # unscaled by other means: on no grid that holds it
        (torch.zeros(10), None),
        (torch.empty(0), None),
        (torch.tensor([1.0, torch.inf]), None),
        (torch.tensor([0.1, torch.nan]), None),
        (torch.ones(3), None),  # on both grids, too few to tell
        (torch.full((1000,), 0.3).bfloat16().float(), None),  # one value, however often
        (RANDOM.bfloat16().half().float(), "bf16"),  # on both grids
        (torch.tensor([65536.0]), None),  # of a bias under a mean, scaled: beyond fp16 for its size alone
        (torch.tensor([48.0, 96.0, 100.0, 1.0]) * 2.0**16, None),  # of one under a sum over the batch
        (torch.tensor([1.0, 3.0]) * 2.0**-40, None),
        (RANDOM.half().float().reshape(10, 100).T, "fp16"),
        (RANDOM[0], "fp32"),
    ],
)
def test_the_values_tell_the_format(values: torch.Tensor, verdict: str | None) -> None:
    check = check_grid(values)
    assert check.ready()
    assert check.verdict() == verdict


def test_a_sparse_gradient_is_judged_by_what_was_computed_not_by_its_sums() -> None:
    values = RANDOM[:40].half().float().reshape(20, 2)
    rows = torch.arange(20).remainder(4)[None]
    assert check_grid(torch.sparse_coo_tensor(rows, values, (4, 2), check_invariants=True)).verdict() == "fp16"


def test_a_large_gradient_is_judged_whole() -> None:
    values = RANDOM.half().float().repeat(5000)
    assert check_grid(values).verdict() == "fp16"
    values[-1] = 0.1
    assert check_grid(values).verdict() == "fp32"
