"""Exponent histograms: counts against numpy.frexp, shares against real casts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scalescope.numerics.exponents import (
    BINS,
    MIN_EXPONENT,
    Histograms,
    Interval,
    below,
    flushed,
    headroom,
    overflowed,
    subnormal,
)
from scalescope.numerics.formats import BF16, E5M2, FP16, FP32


def histogram(values: NDArray[np.floating]) -> Histograms:
    """One row from numpy.frexp; finite values only."""
    magnitude = np.abs(np.asarray(values, np.float64)).reshape(-1)
    normal = magnitude[magnitude >= 2.0**MIN_EXPONENT]
    counts = np.bincount(np.frexp(normal)[1] - 1 - MIN_EXPONENT, minlength=BINS).astype(np.int64)
    none = np.zeros(1, np.int64)
    return Histograms(
        counts[None],
        np.array([magnitude.size - normal.size]),
        none,
        none,
        np.array([magnitude.max(initial=0.0)]),
        np.array([np.square(magnitude).sum()]),
    )


def log_uniform(low: float, high: float, size: int = 20_000, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    values = np.exp2(rng.uniform(low, high, size)) * rng.choice([-1.0, 1.0], size)
    return np.asarray(values, np.float32)


values = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=60).map(
    lambda found: np.asarray(found, np.float32)
)


@settings(deadline=None)
@given(values)
def test_the_classes_are_disjoint_and_sum_to_the_elements(found: NDArray[np.float32]) -> None:
    assert histogram(found).numel[0] == found.size


@settings(deadline=None)
@given(values, values)
def test_merging_is_the_histogram_of_both_together(one: NDArray[np.float32], other: NDArray[np.float32]) -> None:
    merged, whole = histogram(one).merge(histogram(other)), histogram(np.concatenate([one, other]))
    np.testing.assert_array_equal(merged.counts, whole.counts)
    assert (merged.zero[0], merged.amax[0]) == (whole.zero[0], whole.amax[0])


def test_merging_tables_of_different_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 2 rows to merge, got 3"):
        Histograms.empty(2).merge(Histograms.empty(3))


@settings(deadline=None)
@given(values, st.integers(-60, 60))
def test_shifting_is_multiplying_by_a_power_of_two(found: NDArray[np.float32], octaves: int) -> None:
    found = np.where(np.abs(found) < 2.0**MIN_EXPONENT, 0, found)  # fp32's subnormals are zeros already
    product = np.ldexp(found.astype(np.float64), octaves)
    product = product[np.abs(product) < 2.0**128]
    shifted = histogram(found).shift(octaves)
    np.testing.assert_array_equal(shifted.counts, histogram(product).counts)
    assert shifted.inf[0] == found.size - product.size
    assert shifted.numel[0] == found.size


def test_shifting_farther_than_the_range_leaves_only_zeros_or_infinities() -> None:
    table = histogram(np.array([1.0, 2.0, 0.0]))
    assert table.shift(-400).zero[0] == 3
    assert table.shift(400).inf[0] == 2


@pytest.mark.parametrize("octaves", range(-10, 11))
def test_the_flush_interval_holds_the_share_that_a_real_cast_flushes(octaves: int) -> None:
    found = log_uniform(-40, 0)
    low, high = flushed(histogram(found), FP16, octaves)
    truth = int(((found * np.float32(2.0**octaves)).astype(np.float16) == 0).sum())
    assert low[0] <= truth <= high[0]
    assert high[0] - low[0] < 0.03 * found.size


def test_values_on_the_fp16_grid_sit_on_the_flush_edge_and_widen_the_interval() -> None:
    # k 2^-24 scaled down by 2^10: 2^-34 .. the edge 2^-25 is hit exactly by k = 2^9.
    grid = (np.arange(1, 2049) * 2.0**-24).astype(np.float32)
    low, high = flushed(histogram(grid), FP16, -10)
    truth = int(((grid * np.float32(2.0**-10)).astype(np.float16) == 0).sum())
    assert (low[0], truth) == (511, 512)
    assert high[0] == 1023


@pytest.mark.parametrize("scale_ratio", [3.0, 0.7, 1000.0])
def test_a_ratio_of_scales_that_is_no_power_of_two_gives_an_interval_around_the_truth(scale_ratio: float) -> None:
    found = log_uniform(-40, 0)
    low, high = flushed(histogram(found), FP16, math.log2(scale_ratio))
    truth = int(((found * np.float32(scale_ratio)).astype(np.float16) == 0).sum())
    assert low[0] <= truth <= high[0]


def test_the_naive_flush_limit_over_counts_where_ours_does_not() -> None:
    gradient = (np.random.default_rng(0).standard_normal(200_000) * 1e-7).astype(np.float32)
    table = histogram(gradient)
    low, high = (bound[0] / gradient.size for bound in flushed(table, FP16))
    assert low <= 0.234 <= high + 0.001
    assert low == pytest.approx((np.abs(gradient) < 2.0**-25).mean())
    assert (np.abs(gradient) < 2.0**-24).mean() == pytest.approx(0.45, abs=0.01)


def test_the_worked_example_of_100_000_values_flushes_41_percent_unscaled_and_none_at_2_to_the_10() -> None:
    rng = np.random.default_rng(0)
    found = np.exp(rng.uniform(np.log(1e-10), np.log(1e-4), 100_000)).astype(np.float32)
    low, high = flushed(histogram(found), FP16)
    assert low[0] / 1e5 <= 0.412 <= high[0] / 1e5
    assert flushed(histogram(found), FP16, 10)[1][0] / 1e5 < 0.006


@pytest.mark.parametrize("octaves", [-3, 0, 1, 2, 5, 9])
@pytest.mark.parametrize("target", [FP16, E5M2, BF16])
def test_the_overflow_interval_holds_what_a_real_cast_overflows(octaves: int, target: object) -> None:
    assert target in (FP16, E5M2, BF16)
    chosen = next(f for f in (FP16, E5M2, BF16) if f is target)
    found = log_uniform(0, 16.5)
    low, high = overflowed(histogram(found), chosen, octaves)
    truth = int((np.abs(found.astype(np.float64)) * 2.0**octaves >= chosen.overflow_from).sum())
    assert low[0] <= truth <= high[0]


def test_amax_settles_whether_anything_overflows() -> None:
    assert [bound[0] for bound in overflowed(histogram(np.array([65519.0, 40000.0])), FP16)] == [0, 0]
    assert [bound[0] for bound in overflowed(histogram(np.array([65520.0, 40000.0])), FP16)] == [1, 2]


def test_subnormals_are_counted_exactly_for_each_format() -> None:
    found = log_uniform(-30, 2)
    truth = int((np.abs(found) < 2.0**-14).sum())
    assert subnormal(histogram(found), FP16)[0] == truth
    assert subnormal(histogram(found), FP32)[0] == 0


def test_an_edge_outside_the_range_is_exact() -> None:
    table = histogram(np.array([1.0, 4.0]))
    assert [bound[0] for bound in below(table, -200)] == [0, 0]
    assert [bound[0] for bound in below(table, 200)] == [2, 2]
    assert [bound[0] for bound in overflowed(table, FP32)] == [0, 0]


def test_a_total_holds_every_row_and_nothing_has_a_total_of_nothing() -> None:
    both = Histograms.stack([histogram(np.array([1.0, 0.0])), histogram(np.array([8.0]))])
    assert (both.total().numel[0], both.total().amax[0], both.total().sum_squares[0]) == (3, 8.0, 65.0)
    assert Histograms.empty(0).total().numel[0] == 0


def test_headroom_is_in_octaves() -> None:
    assert headroom(65504.0, FP16) == 0.0
    assert headroom(32752.0, FP16) == 1.0
    assert headroom(0.0, FP16) == math.inf


def test_an_interval_is_exact_when_its_ends_meet() -> None:
    assert Interval(3, 3).exact
    assert Interval(1, 3).over(4) == Interval(0.25, 0.75)
    assert Interval(0, 0).over(0) == Interval(0.0, 0.0)
