"""The sums of two gradients, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scalescope.numerics.tallies import PROBE_TALLIES
from scalescope.taps.probe import compare as probe_compare
from scalescope.taps.probe.compare import compare

SCALE = 2.0**10


def told(own: torch.Tensor | None, reference: torch.Tensor, scale: float = SCALE) -> dict[str, float]:
    columns = compare({} if own is None else {7: own}, {7: reference}, scale)
    assert list(columns) == list(PROBE_TALLIES)
    return {name: float(values[0]) for name, values in columns.items()}


def expected(own: torch.Tensor, reference: torch.Tensor, scale: float = SCALE) -> dict[str, float]:
    """By numpy, over the elements that are finite in both."""
    low, high = own.double().numpy().ravel() / scale, reference.double().numpy().ravel()
    kept = np.isfinite(low) & np.isfinite(high)
    a, b = low[kept], high[kept]
    return {
        "reference_nonzero": np.count_nonzero(b),
        "lost": np.count_nonzero((b != 0) & (a == 0)),
        "error_squares": ((a - b) ** 2).sum(),
        "reference_squares": (b**2).sum(),
        "own_squares": (a**2).sum(),
        "products": (a * b).sum(),
        "own_nonfinite": np.count_nonzero(~np.isfinite(low)),
        "reference_nonfinite": np.count_nonzero(~np.isfinite(high)),
    }


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (probe_compare._CHUNK_CPU * 2 + 3,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_column_is_what_numpy_says(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    reference = torch.randn(shape) * 3e-11
    own = (reference * SCALE).half().to(dtype)
    assert told(own, reference) == pytest.approx(expected(own, reference), rel=1e-12)
    if reference.numel() > 100:
        assert 0 < told(own, reference)["lost"] < reference.numel()


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    own = torch.tensor([1.0, torch.inf, torch.nan, 0.0, -torch.inf, 8.0])
    reference = torch.tensor([1.0, 2.0, 3.0, torch.nan, torch.inf, 4.0])
    assert told(own, reference) == expected(own, reference)
    assert (told(own, reference)["own_nonfinite"], told(own, reference)["reference_nonfinite"]) == (3, 2)


def test_the_smallest_values_of_fp32_are_not_zero() -> None:
    reference = torch.tensor([2.0**-149, 2.0**-140, 0.0])
    assert told(torch.zeros(3), reference)["lost"] == 2


def test_a_gradient_that_the_training_has_not_is_zero() -> None:
    reference = torch.tensor([1.0, 0.0])
    assert told(None, reference) == expected(torch.zeros(2), reference)


def test_sparse_gradients_are_compared_whole() -> None:
    indices = torch.tensor([[1, 1, 3]])
    reference = torch.sparse_coo_tensor(indices, torch.tensor([1e-9, 1e-9, 1.0]), (5,), check_invariants=True)
    own = torch.sparse_coo_tensor(torch.tensor([[3]]), torch.tensor([SCALE]), (5,), check_invariants=True)
    assert told(own, reference) == expected(own.to_dense(), reference.to_dense())


def test_at_a_scale_of_zero_everything_is_not_finite() -> None:
    assert told(torch.zeros(2), torch.ones(2), scale=0.0)["own_nonfinite"] == 2


def test_without_gradients_there_are_no_rows() -> None:
    assert all(values.shape == (0,) for values in compare({}, {}, 1.0).values())
