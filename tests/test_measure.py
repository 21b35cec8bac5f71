"""measure() against numpy.frexp and float64 sums, for every dtype and layout a gradient can have."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from scalescope.numerics.measure import _dense_values, _on_device, measure

from tests.by_frexp import assert_same, expected, mixed

torch.set_num_threads(1)
KINDS = [torch.float32, torch.bfloat16, torch.float16]


def assert_measured(tensor: torch.Tensor) -> None:
    wanted = expected(tensor.detach().to_dense().double().numpy())
    found = measure([tensor]).result()
    assert_same(found, wanted)
    assert found.numel[0] == tensor.numel()
    # The path for devices is the same arithmetic on any device; only the copy back differs.
    hidden = np.array([tensor.numel() - _dense_values(tensor).numel()])
    assert_same(_on_device([_dense_values(tensor)], hidden, torch.device("cpu")).result(), wanted)


@settings(deadline=None, max_examples=150)
@given(arrays.arrays(np.float32, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0), elements=st.floats(width=32)))
def test_any_fp32_tensor_is_counted_as_frexp_counts_it(values: NDArray[np.float32]) -> None:
    with np.errstate(over="ignore"):
        assert_measured(torch.from_numpy(np.array(values)))


@settings(deadline=None, max_examples=100)
@given(arrays.arrays(np.float16, st.integers(0, 300), elements=st.floats(width=16)))
def test_any_fp16_tensor_is_counted_by_value_and_not_by_its_own_field(values: NDArray[np.float16]) -> None:
    assert_measured(torch.from_numpy(values))


@settings(deadline=None, max_examples=100)
@given(arrays.arrays(np.float64, st.integers(0, 100), elements=st.floats(width=64)))
def test_any_float64_tensor_is_folded_into_the_range_of_fp32(values: NDArray[np.float64]) -> None:
    with np.errstate(over="ignore"):
        assert_measured(torch.from_numpy(values))


@settings(deadline=None, max_examples=100)
@given(arrays.arrays(np.uint16, st.integers(0, 300), elements=st.integers(0, 65535)))
def test_any_bf16_bit_pattern_is_counted(bits: NDArray[np.uint16]) -> None:
    assert_measured(torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16))


@pytest.mark.parametrize("size", [1, 1023, (1 << 19) - 1, (1 << 19) + 1, 700_001])
def test_sizes_around_the_chunk_are_counted_whole(size: int) -> None:
    assert_measured(mixed(size, seed=size))


def test_ten_million_values_equal_frexp_and_sum_to_numel() -> None:
    tensor = mixed(10_000_000, seed=1)
    found = measure([tensor]).result()
    assert_same(found, expected(tensor.double().numpy()))
    assert found.numel[0] == 10_000_000


def test_non_contiguous_and_expanded_tensors_are_measured_as_they_look() -> None:
    base = mixed(120, seed=2).reshape(10, 12)
    for view in (base.t(), base[::2, ::3], base[0].expand(5, 12), base.flip(0)):
        assert_measured(view)


def test_sparse_gradients_are_coalesced_and_their_implicit_zeros_counted() -> None:
    index = torch.tensor([[1, 1, 3]])
    summed = torch.sparse_coo_tensor(index, torch.tensor([40000.0, 40000.0, 2.0**-20]), (1000,), check_invariants=True)
    found = measure([summed]).result()
    assert found.zero[0] == 998
    assert found.amax[0] == 80000.0
    assert found.numel[0] == 1000
    assert_measured(summed)


def test_sparse_halves_that_overflow_when_summed_are_found_infinite() -> None:
    halves = torch.sparse_coo_tensor(
        torch.tensor([[1, 1]]), torch.tensor([40000.0, 40000.0]).half(), (4,), check_invariants=True
    )
    assert measure([halves]).result().inf[0] == 1


def test_a_compressed_sparse_row_tensor_is_measured() -> None:
    dense = torch.diag(torch.tensor([1.0, 0.0, -3.0]))
    assert_measured(dense.to_sparse_coo())
    assert measure([dense.to_sparse_coo()]).result().zero[0] == 7


def test_complex_gradients_count_both_parts() -> None:
    found = measure([torch.tensor([1 + 4j, 0j])]).result()
    assert found.numel[0] == 4
    assert found.zero[0] == 2
    assert found.amax[0] == 4.0


def test_values_whose_squares_leave_fp32_keep_their_sum() -> None:
    for value in (1e20, 1e-25, 3e38):
        found = measure([torch.full((1000,), value)]).result()
        assert math.isclose(found.sum_squares[0], 1000 * float(np.float32(value)) ** 2, rel_tol=1e-6)


@pytest.mark.parametrize("value", [0.1, 0.123456, 1 / 3, 0.7, 1e-3])
def test_the_sum_of_squares_of_millions_of_equal_values_stays_within_2e_5(value: float) -> None:
    found = measure([torch.full((6_000_000,), value)]).result()
    assert math.isclose(found.sum_squares[0], 6_000_000 * float(np.float32(value)) ** 2, rel_tol=2e-5)


def test_a_factor_gives_unscaled_gradients_back_as_they_stood() -> None:
    scaled = mixed(5000, seed=3).clamp(-(2.0**100), 2.0**100)
    scaled[scaled.abs() < 2.0**-100] = 0
    found = measure([scaled / 65536], factor=65536.0).result()
    assert_same(found, expected(scaled.double().numpy()))


def test_many_tensors_are_rows_in_their_order() -> None:
    tensors = [mixed(size, seed=size) for size in (0, 1, 50, 7)]
    found = measure(tensors).result()
    assert found.numel.tolist() == [0, 1, 50, 7]
    for row, tensor in enumerate(tensors):
        assert_same(found.take([row]), expected(tensor.double().numpy()))


@pytest.mark.parametrize("factor", [1.0, 2.0**-12])
def test_many_small_tensors_are_counted_together_as_they_are_one_by_one(factor: float) -> None:
    sizes = [1, 16_384, 16_383, 1, 5, 9_000, 9_000, 9_000, 3, 1, 12_000]
    tensors = [mixed(size, seed).to(KINDS[seed % 3]) for seed, size in enumerate(sizes)]
    tensors += [torch.zeros(50), torch.full((40,), 1e20), torch.full((30,), -1e-30), torch.full((3,), math.nan)]
    found = measure(tensors, factor=factor).result()
    for row, tensor in enumerate(tensors):
        wanted = expected((tensor.float() * factor).double().numpy())
        assert_same(found.take([row]), wanted)
        np.testing.assert_allclose(found.sum_squares[row], wanted.sum_squares[0], rtol=2e-5)


def test_another_default_device_changes_nothing() -> None:
    tensors = [mixed(50, seed=5), mixed(70_000, seed=6)]
    torch.set_default_device("meta")
    try:
        found = measure(tensors).result()
    finally:
        torch.set_default_device(None)
    for row, tensor in enumerate(tensors):
        assert_same(found.take([row]), expected(tensor.double().numpy()))


def test_no_tensors_give_no_rows() -> None:
    assert measure([]).result().rows == 0


def test_measuring_changes_no_bit_of_the_gradient() -> None:
    tensor = mixed(1000, seed=4)
    before = tensor.view(torch.int32).clone()
    measure([tensor], factor=4.0)
    assert torch.equal(before, tensor.view(torch.int32))
