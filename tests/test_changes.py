"""What an update did to weights: the compiled kernel beside torch, and both beside plain arithmetic."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from scalescope.numerics.changes import tallied
from scalescope.numerics.elsewhere import CompileError
from scalescope.numerics.machine_code import Kernels, compile_elsewhere
from scalescope.numerics.paths import Faster

torch.set_num_threads(1)
DEADLINE_S = 120
needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")


def settled(faster: Faster[Kernels]) -> Faster[Kernels]:
    faster.ask()
    assert faster.settled.wait(DEADLINE_S)
    return faster


def refusing() -> Kernels:
    raise CompileError("not installed")


NONE = Faster("numba", refusing)


@pytest.fixture(scope="module")
def numba() -> Faster[Kernels]:
    return settled(Faster("numba", compile_elsewhere))


def weights(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights over the range of fp16 and beyond, and updates around half of the spacing there; with all that is odd."""
    rng = np.random.default_rng(seed)
    before = np.exp2(rng.uniform(-30, 18, size)) * rng.choice([-1.0, 1.0], size)
    with np.errstate(over="ignore"):
        before = np.where(rng.random(size) < 0.5, before.astype(np.float16).astype(np.float64), before)
    before[np.isinf(before)] = 65504.0
    # A power of two of the weight: ties are frequent.
    change = np.exp2(np.floor(np.log2(np.abs(before) + 1e-30)) - rng.integers(6, 14, size))
    change *= rng.choice([-1.0, 1.0, 0.5, 1.5, 0.75], size)
    odd = rng.integers(0, 20, size)
    for kind, value in enumerate((0.0, np.inf, -np.inf, np.nan)):
        change[odd == kind] = value
        before[odd == 10 + kind] = value
    before[odd == 14] = 65519.99
    return torch.from_numpy(before.astype(np.float32)).double(), torch.from_numpy(change)


def test_each_count_is_what_plain_arithmetic_says() -> None:
    before = torch.tensor([1.5, 1.5, 1.0, 2.0, 4.0], dtype=torch.float64)
    intended = torch.tensor([2.0**-12, 2.0**-10, 0.0, float("nan"), 2.0**-8], dtype=torch.float64)
    change = torch.tensor([0.0, 2.0**-10, 0.0, 0.0, 2.0**-8], dtype=torch.float64)
    gradient = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0])
    found = tallied(before, change, gradient, intended, [3, 2], faster=NONE)
    assert found[2:].tolist() == [[2, 2], [1, 1], [2, 1], [1, 0], [2, 1]]
    np.testing.assert_allclose(found[:2].numpy(), [[2.0**-10, 2.0**-8], [5.5**0.5, 20.0**0.5]])


@needs_numba
@pytest.mark.parametrize("seed", range(8))
def test_the_kernel_counts_what_torch_counts(numba: Faster[Kernels], seed: int) -> None:
    before, intended = weights(6000, seed)
    change = torch.where(torch.rand(6000) < 0.3, 0.0, 1.0).double() * intended
    gradient = torch.randn(6000, dtype=torch.float16) * (torch.rand(6000) < 0.8)
    lengths = [1, 999, 3000, 2000]
    found = tallied(before, change, gradient, intended, lengths, faster=numba)
    wanted = tallied(before, change, gradient, intended, lengths, faster=NONE)
    torch.testing.assert_close(found[2:], wanted[2:], rtol=0, atol=0)
    torch.testing.assert_close(found[:2], wanted[:2], rtol=1e-12, atol=0, equal_nan=True)
    assert numba.reason == ""


@needs_numba
def test_ties_go_to_the_even_neighbour_and_the_largest_values_to_infinity(numba: Faster[Kernels]) -> None:
    before = torch.tensor([1.0, 1.0 + 2.0**-10, 65504.0, 65504.0, 3e38], dtype=torch.float64)
    intended = torch.tensor([2.0**-11, 2.0**-11, 15.9, 16.0, 1e36], dtype=torch.float64)
    rows = tallied(before, intended, torch.ones(5), intended, [1] * 5, faster=numba)
    # In fp16 the first ties to itself, the second away; 65520 and more is infinite; 3e38 is infinite before and after.
    assert rows[5].tolist() == [1, 0, 1, 0, 1]
    assert rows[6].tolist() == [1, 1, 1, 1, 0]
