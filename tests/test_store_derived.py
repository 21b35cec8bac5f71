"""The series read out of samples, against the definitions, element by element."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scalescope.numerics.exponents import Histograms
from scalescope.packing import Trimmed
from scalescope_server.store.derived import GradientSums, format_code, gradient_sums
from scalescope_server.store.stacks import Stack

from tests.batches import histograms

FORMATS = np.array([format_code("fp16"), format_code("torch.bfloat16"), format_code(None)], np.uint8)


def derive(table: Histograms, formats: NDArray[np.uint8], scale: float | None) -> dict[str, float]:
    return sums(table, formats, scale).values()


def sums(table: Histograms, formats: NDArray[np.uint8], scale: float | None) -> GradientSums:
    (found,) = gradient_sums(Stack.of(Trimmed.of(table)), formats, [scale])
    return GradientSums(*found.tolist())


def test_shares_are_over_all_parameters_and_values_are_divided_by_the_scale() -> None:
    # fp16: normal from 2**-14, flushed below 2**-25. The second row is normal in bf16, the third is of no format.
    table = histograms([0, -15, -26], [-15, 3], [-15], zero=1)
    found = derive(table, FORMATS, 4.0)
    assert found["zero_share"] == 3 / 9
    assert found["subnormal_share"] == 2 / 7
    assert found["flush_share"] == 1 / 6
    assert found["amax"] == 2.0
    assert found["grad_norm"] == pytest.approx(math.sqrt(1 + 3 * 4.0**-15 + 4.0**-26 + 64) / 4, rel=1e-15)


def test_a_value_on_the_flush_edge_is_left_out_of_the_low_bound() -> None:
    assert derive(histograms([-25, 0]), FORMATS[:1], None)["flush_share"] == 0
    assert derive(histograms([-26, 0]), FORMATS[:1], None)["flush_share"] == 0.5


def test_the_norm_of_a_gradient_that_is_not_finite_is_not_finite() -> None:
    assert derive(histograms([0], inf=1), FORMATS[:1], 1.0)["grad_norm"] == math.inf
    assert math.isnan(derive(histograms([0], inf=1, nan=1), FORMATS[:1], 1.0)["grad_norm"])


def test_a_share_of_nothing_is_left_out() -> None:
    assert derive(Histograms.empty(2), FORMATS[:2], 1.0) == {}
    only_zeros = derive(histograms([], zero=4), FORMATS[2:], 1.0)
    assert only_zeros == {"zero_share": 1.0, "amax": 0.0, "grad_norm": 0.0}


@pytest.mark.parametrize(("scale", "amax"), [(None, 8.0), (2.0, 4.0), (0.0, math.nan), (math.inf, 0.0)])
def test_a_scale_of_zero_leaves_nothing_to_divide_by(scale: float | None, amax: float) -> None:
    np.testing.assert_equal(derive(histograms([3]), FORMATS[:1], scale)["amax"], amax)


@pytest.mark.parametrize("name", [None, "", "float64", "int8", "complex64"])
def test_a_format_without_known_limits_has_no_subnormal_share(name: str | None) -> None:
    assert "subnormal_share" not in derive(histograms([0]), np.array([format_code(name)], np.uint8), 1.0)


def test_sums_of_two_ranks_are_those_of_all_their_rows() -> None:
    one, other = histograms([0, -15, -26], zero=1), histograms([-15, 3], zero=2, inf=1)
    whole = sums(Histograms.stack([one, other]), FORMATS[:2], 4.0)
    assert sums(one, FORMATS[:1], 4.0).plus(sums(other, FORMATS[1:2], 4.0)) == whole
    assert whole.values()["grad_norm"] == math.inf
    assert sums(Histograms.empty(1), FORMATS[:1], 4.0).plus(whole) == whole
