"""The energy below an edge, as an interval that holds the float64 truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scalescope.numerics.exponents import Histograms, energy_below

from tests.test_exponents import histogram, log_uniform


def shares(found: NDArray[np.floating], exponent: float) -> tuple[float, float]:
    """The true share of the squares of values below the edge, without those on it and with them."""
    values = np.abs(np.asarray(found, np.float64))
    squares = np.square(values)
    whole = squares.sum() or 1.0
    return float(squares[values < 2.0**exponent].sum() / whole), float(squares[values <= 2.0**exponent].sum() / whole)


def bounds(found: NDArray[np.floating], exponent: float) -> tuple[float, float]:
    low, high = energy_below(histogram(found), exponent)
    return float(low[0]), float(high[0])


values = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=40).map(
    lambda found: np.asarray(found, np.float32)
)

# None so near to a whole number that float64 has one power of two for both.
edges = st.one_of(st.integers(-140, 140), st.floats(-140, 140).map(lambda edge: round(edge, 9)))


@settings(deadline=None, max_examples=300)
@given(values, edges)
def test_the_interval_holds_the_truth(found: NDArray[np.float32], exponent: float) -> None:
    low, high = bounds(found, exponent)
    strict, closed = shares(found, exponent)
    assert low <= strict * (1 + 1e-12)
    assert closed <= high * (1 + 1e-12)


@pytest.mark.parametrize("exponent", [-25, -24, -20.5, -14])
def test_the_interval_is_narrow_where_the_edge_cuts_the_energy(exponent: float) -> None:
    found = log_uniform(-30, -12)
    low, high = bounds(found, exponent)
    strict, closed = shares(found, exponent)
    assert low <= strict <= closed <= high
    assert high < 5 * strict


def test_a_million_small_values_have_less_energy_than_one_large_one() -> None:
    found = np.concatenate([np.full(100_000, 2.0**-26), [1.0]]).astype(np.float32)
    low, high = bounds(found, -25)
    assert 0 < low <= high < 1e-8


def test_all_and_nothing_are_exact() -> None:
    found = log_uniform(-10, 0)
    assert bounds(found, -10.5) == (0.0, 0.0)
    assert bounds(found, 1) == (1.0, 1.0)
    assert [bound.tolist() for bound in energy_below(Histograms.empty(2), -14)] == [[0.0, 0.0], [0.0, 0.0]]


def test_what_float64_has_beyond_the_bins_is_above_every_edge() -> None:
    table = histogram(np.array([1.0, 1.0]))
    beyond = Histograms(table.counts, table.zero, table.inf + 1, table.nan, np.array([2.0**130]), np.array([2.0**260]))
    low, high = energy_below(beyond, 10)
    assert low[0] <= 2.0**-259 <= high[0]
