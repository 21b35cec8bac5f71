"""What would flush at another scale, read from one histogram, against real casts of real gradients."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from scalescope.numerics.exponents import flushed
from scalescope.numerics.formats import FP16
from scalescope.numerics.measure import measure
from torch import nn

SCALE = 2.0**10
SCALES = [1.0, 2.0**4, 2.0**7, 2.0**9, 2.0**10, 3000.0, 2.0**12, 2.0**14, 2.0**15 + 7, 2.0**17]


def precision(name: str) -> AbstractContextManager[object]:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name)
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


def gradients(name: str) -> list[torch.Tensor]:
    """Of a small loss, scaled; those of the matrices on the grid of the format that the backward computed in."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
    with precision(name):
        loss = model(torch.randn(256, 64)).float().square().mean() * 1e-5
    (loss * SCALE).backward()
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if name == "fp16":
        assert torch.equal(found[0].half().float(), found[0])
    return found


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_the_flush_interval_holds_the_share_of_a_real_cast(name: str, scale: float) -> None:
    found = gradients(name)
    table = measure(found).result()
    low, high = flushed(table, FP16, math.log2(scale / SCALE))
    for row, gradient in enumerate(found):
        cast = (gradient.double() * (scale / SCALE)).numpy().astype("float16")
        truth = int(((cast == 0) & (gradient != 0).numpy()).sum())
        assert low[row] <= truth <= high[row]


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_the_scales_reach_from_where_much_flushes_to_where_nothing_does(name: str) -> None:
    whole = measure(gradients(name)).result().total()
    shares = [flushed(whole, FP16, math.log2(scale / SCALE))[0][0] / whole.nonzero[0] for scale in SCALES]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.9
    assert shares[-1] < 0.01
