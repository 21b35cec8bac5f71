"""What an update did to weights: NumPy and the compiled kernel beside torch, all of them beside plain arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scalescope.numerics import changes, changes_host
from scalescope.numerics.changes import tallied
from scalescope.numerics.elsewhere import CompileError
from scalescope.numerics.machine_code import Kernels
from scalescope.numerics.paths import Faster

torch.set_num_threads(1)
DEADLINE_S = 120
needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def settled(faster: Faster[Kernels]) -> Faster[Kernels]:
    faster.ask()
    assert faster.settled.wait(DEADLINE_S)
    return faster


def refusing() -> Kernels:
    raise CompileError("not installed")


NONE = Faster("numba", refusing)


@pytest.fixture(scope="module")
def numba(kernels: Kernels) -> Faster[Kernels]:
    return settled(Faster("numba", lambda: kernels))


def by_torch(
    before: torch.Tensor,
    after: torch.Tensor,
    gradient: torch.Tensor,
    intended: torch.Tensor | None,
    lengths: Sequence[int],
) -> torch.Tensor:
    """As a device computes it: rounds and compares."""
    return changes._on_device(before.double(), after.double(), gradient, intended, list(lengths))


def assert_same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found[2:], wanted[2:], rtol=0, atol=0)
    torch.testing.assert_close(found[:2], wanted[:2], rtol=1e-12, atol=0, equal_nan=True)


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


def case(dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights before and after, gradients, intended updates."""
    before, intended = weights(6000, seed)
    after = torch.where(torch.rand(6000) < 0.3, before, before + intended).to(dtype)
    gradient = torch.randn(6000) * (torch.rand(6000) < 0.8)
    return before.to(dtype), after, gradient.to(DTYPES[seed % 4]), intended


LENGTHS = [1, 999, 3000, 2000]


def test_each_count_is_what_plain_arithmetic_says() -> None:
    before = torch.tensor([1.5, 1.5, 1.0, 2.0, 4.0])
    intended = torch.tensor([2.0**-12, 2.0**-10, 0.0, float("nan"), 2.0**-8], dtype=torch.float64)
    after = before + torch.tensor([0.0, 2.0**-10, 0.0, 0.0, 2.0**-8])
    gradient = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0])
    found = tallied(before, after, gradient, intended, [3, 2], faster=NONE)
    assert found[2:].tolist() == [[2, 2], [1, 1], [2, 1], [1, 0], [2, 1]]
    np.testing.assert_allclose(found[:2].numpy(), [[2.0**-10, 2.0**-8], [5.5**0.5, 20.0**0.5]])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numpy_counts_what_torch_counts(dtype: torch.dtype, seed: int) -> None:
    before, after, gradient, intended = case(dtype, seed)
    for aims in (intended, None):
        found = tallied(before, after, gradient, aims, LENGTHS, faster=NONE)
        assert_same(found, by_torch(before, after, gradient, aims, LENGTHS))


@needs_numba
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernel_counts_what_torch_counts(numba: Faster[Kernels], dtype: torch.dtype, seed: int) -> None:
    before, after, gradient, intended = case(dtype, seed)
    for aims in (intended, None):
        found = tallied(before, after, gradient, aims, LENGTHS, faster=numba)
        assert_same(found, by_torch(before, after, gradient, aims, LENGTHS))
    assert numba.reason == ""


def test_rows_longer_than_a_chunk_and_rows_that_end_with_one_are_counted_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changes_host, "_CHUNK", 500)
    before, after, gradient, intended = case(torch.float32, 5)
    lengths = [500, 1, 499, 1700, 300, 3000]
    found = tallied(before, after, gradient, intended, lengths, faster=NONE)
    assert_same(found, by_torch(before, after, gradient, intended, lengths))


TIES = torch.tensor([1.0, 1.0 + 2.0**-10, 65504.0, 65504.0, 3e38])
AROUND = torch.tensor([2.0**-11, 2.0**-11, 15.9, 16.0, 1e36], dtype=torch.float64)


def assert_ties(faster: Faster[Kernels]) -> None:
    rows = tallied(TIES, TIES, torch.ones(5), AROUND, [1] * 5, faster=faster)
    # In fp16 the first ties to itself, the second away; 65520 and more is infinite; 3e38 is infinite before and after.
    assert rows[5].tolist() == [1, 0, 1, 0, 1]
    assert rows[6].tolist() == [1, 1, 1, 1, 0]


def test_ties_go_to_the_even_neighbour_and_the_largest_values_to_infinity() -> None:
    assert_ties(NONE)


@needs_numba
def test_so_they_do_in_the_kernel(numba: Faster[Kernels]) -> None:
    assert_ties(numba)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-4, 4), st.integers(-14, -6)),
        min_size=1,
        max_size=40,
    )
)
def test_any_fp32_weights_absorb_what_rounding_says(found: list[tuple[int, int, int]]) -> None:
    before = torch.tensor([bits for bits, _, _ in found], dtype=torch.int32).view(torch.float32)
    # Around half of the spacing of the weight, and ties.
    aims = before.double() * torch.tensor([share * 2.0**octave for _, share, octave in found], dtype=torch.float64)
    lengths, gradient = [1] * len(found), torch.ones(len(found))
    told = tallied(before, before, gradient, aims, lengths, faster=NONE)
    torch.testing.assert_close(
        told[2:], by_torch(before, before, gradient, aims, lengths)[2:], rtol=0, atol=0, equal_nan=True
    )
