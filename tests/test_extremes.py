"""The largest finite magnitude and how many values are finite, on the host and as a device computes them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scalescope.numerics import extremes as module
from scalescope.numerics.extremes import Extremes, below_infinity, extremes

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def truth(values: torch.Tensor) -> tuple[float, int]:
    array = values.double().numpy()
    finite = array[np.isfinite(array)]
    return float(np.abs(finite).max(initial=0.0)), finite.size


def as_numbers(found: Extremes) -> tuple[float, int]:
    return float(found.amax), int(found.finite)


@given(arrays.arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32)), st.sampled_from(DTYPES))
def test_both_ways_agree_with_numpy_for_any_values(
    values: np.ndarray[tuple[int], np.dtype[np.float32]], dtype: torch.dtype
) -> None:
    tensor = torch.from_numpy(values).to(dtype)
    assert as_numbers(extremes(tensor)) == truth(tensor)
    if len(values):
        assert as_numbers(module._on_device(tensor)) == truth(tensor)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nothing_finite_has_no_magnitude(dtype: torch.dtype) -> None:
    tensor = torch.tensor([math.nan, math.inf, -math.inf], dtype=dtype)
    assert as_numbers(extremes(tensor)) == as_numbers(module._on_device(tensor)) == (0.0, 0)


def test_a_device_looks_at_large_tensors_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 7)
    torch.manual_seed(0)
    tensor = torch.randn(10, 10).half()
    tensor[3, 4], tensor[9, 9] = math.inf, math.nan
    assert as_numbers(module._on_device(tensor.t())) == truth(tensor)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_formats_that_nothing_computes_in_are_widened(dtype: torch.dtype) -> None:
    tensor = torch.tensor([1.0, -3.0, math.nan]).to(dtype)
    assert as_numbers(extremes(tensor)) == (3.0, 2)


def test_minus_infinity_is_below_infinity_and_nan_is_not() -> None:
    assert below_infinity(torch.tensor([math.nan, math.inf, -math.inf, 1.0])) == 2
