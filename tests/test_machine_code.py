"""The compiled kernels against numpy.frexp and float64 sums: compiled for real, in another process."""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from scalescope.numerics.elsewhere import CompileError
from scalescope.numerics.exponents import Histograms
from scalescope.numerics.loading import Kernel
from scalescope.numerics.machine_code import Kernels

from tests.by_frexp import assert_same, expected, mixed

pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")
torch.set_num_threads(1)


def measured(kernels: Kernels, tensors: list[torch.Tensor], factor: float = 1.0) -> Histograms:
    raw = kernels.measure([tensor.reshape(-1).contiguous() for tensor in tensors], factor)
    return Histograms(
        raw.fields[:, 1:255], raw.fields[:, 0], raw.inf, raw.fields[:, 255] - raw.inf, raw.amax, raw.squares
    )


def assert_measured(kernels: Kernels, tensor: torch.Tensor) -> None:
    found, wanted = measured(kernels, [tensor]), expected(tensor.double().numpy())
    assert_same(found, wanted)
    assert found.numel[0] == tensor.numel()
    # fp32 squares are added in float64 here, and nothing is rounded before.
    np.testing.assert_allclose(found.sum_squares, wanted.sum_squares, rtol=1e-12)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 4095, 4096, 4097, 8193, 100_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sizes_around_the_block_are_counted_whole(kernels: Kernels, size: int, dtype: torch.dtype) -> None:
    assert_measured(kernels, mixed(size, seed=size).to(dtype))


def test_every_bit_pattern_of_half_precision_is_counted(kernels: Kernels) -> None:
    patterns = torch.from_numpy(np.arange(1 << 16, dtype=np.uint16).view(np.int16))
    for dtype in (torch.float16, torch.bfloat16):
        assert_measured(kernels, patterns.view(dtype))


@settings(deadline=None, max_examples=100)
@given(values=arrays.arrays(np.float32, st.integers(0, 300), elements=st.floats(width=32)))
def test_any_fp32_values_are_counted_as_frexp_counts_them(kernels: Kernels, values: NDArray[np.float32]) -> None:
    with np.errstate(over="ignore"):
        assert_measured(kernels, torch.from_numpy(values))


def test_a_block_of_zeros_or_of_one_value_is_counted(kernels: Kernels) -> None:
    for value in (0.0, -0.0, 1e-40, 0.1, -3e38, math.inf, math.nan):
        assert_measured(kernels, torch.full((9000,), value))


def test_squares_that_leave_fp32_are_kept(kernels: Kernels) -> None:
    for value in (1e20, 1e-25, 3e38):
        assert_measured(kernels, torch.full((5000,), value))


def test_many_tensors_of_all_kinds_are_rows_in_their_order(kernels: Kernels) -> None:
    tensors = [mixed(7, 1), mixed(5000, 2).half(), mixed(0, 3), mixed(9000, 4).bfloat16(), mixed(1, 5)]
    found = measured(kernels, tensors)
    for row, tensor in enumerate(tensors):
        assert_same(found.take([row]), expected(tensor.double().numpy()))


def test_a_factor_multiplies_in_fp32(kernels: Kernels) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        values = mixed(6000, seed=3).to(dtype)
        found = measured(kernels, [values], factor=1024.0)
        assert_same(found, expected((values.float() * 1024.0).double().numpy()))


def test_subnormals_of_fp16_count_where_the_training_flushes_denormals(kernels: Kernels) -> None:
    values = torch.tensor([2.0**-24, -(2.0**-20), 2.0**-14], dtype=torch.float16)
    wanted = expected(values.double().numpy())
    torch.set_flush_denormal(True)
    try:
        found = measured(kernels, [values])
    finally:
        torch.set_flush_denormal(False)
    assert_same(found, wanted)


def test_measuring_leaves_the_floating_point_environment_as_it_is(kernels: Kernels) -> None:
    kernels.measure([mixed(5000, seed=6)], 2.0)
    assert (torch.tensor([1e-40]) * 0.5).item() != 0.0
    assert torch.get_num_threads() == 1


def test_numba_is_not_imported_where_the_kernels_is_used(kernels: Kernels) -> None:
    before = "numba" in sys.modules
    kernels.measure([torch.ones(3)], 1.0)
    assert ("numba" in sys.modules) == before


def test_what_is_no_text_of_llvm_is_refused() -> None:
    with pytest.raises(CompileError, match="expected LLVM's text"):
        Kernel("not this", "")


def test_code_that_needs_what_is_not_there_is_refused_and_not_run() -> None:
    with pytest.raises(CompileError, match=r"needs no other, got \['f'\] that need \['numba_unpickle'\]"):
        Kernel(
            "declare i32 @numba_unpickle()\ndefine i32 @f() {\n %1 = call i32 @numba_unpickle()\n ret i32 %1\n}\n", ""
        )
