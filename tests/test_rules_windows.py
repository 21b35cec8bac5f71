"""Functions over moving windows against batch references, and what they keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scalescope_server.rules.windows import Window
from scalescope_server.rules.windows.extremes import Max, Min
from scalescope_server.rules.windows.moves import Changes, Reversals
from scalescope_server.rules.windows.ordered import Quantile
from scalescope_server.rules.windows.rates import Count, Rate, Share
from scalescope_server.rules.windows.totals import Mean, Sum, Totals, ZScore

finite = st.floats(allow_nan=False, allow_infinity=False)


class Wide:
    """A window that is as wide as that in its keys."""

    def __init__(self, of: Window, width: float) -> None:
        self.of, self.width = of, width

    def push(self, key: float, value: float) -> float | None:
        return self.of.push(key, value, key - self.width)

    def slide(self, key: float) -> float | None:
        return self.of.slide(key - self.width)


def pushed(window: Wide, values: Sequence[float]) -> list[float | None]:
    """What it says after each value, told at keys 0, 1, 2, ..."""
    return [window.push(key, value) for key, value in enumerate(values)]


def by_batch(
    function: Callable[[Sequence[float]], float | None], values: Sequence[float], width: int
) -> list[float | None]:
    return [function(values[max(0, end - width) : end]) for end in range(1, len(values) + 1)]


def exact_mean(values: Sequence[float]) -> float:
    mean = sum(map(Fraction, values), Fraction()) / len(values)
    return rounded(mean)


def rounded(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@settings(deadline=None)
@given(st.lists(finite, min_size=1, max_size=40), st.integers(1, 10))
def test_mean_and_sum_are_the_floats_nearest_to_the_truth(values: list[float], width: int) -> None:
    assert pushed(Wide(Mean(), width), values) == by_batch(exact_mean, values, width)
    sums = by_batch(lambda window: rounded(sum(map(Fraction, window), Fraction())), values, width)
    assert pushed(Wide(Sum(), width), values) == sums


@settings(deadline=None)
@given(st.lists(finite, min_size=1, max_size=40), st.integers(1, 12), st.sampled_from([0.0, 0.1, 0.5, 0.95, 1.0]))
def test_a_quantile_is_that_of_the_sorted_window(values: list[float], width: int, share: float) -> None:
    found = pushed(Wide(Quantile(share), width), values)
    with np.errstate(all="ignore"):
        expected = by_batch(lambda window: float(np.quantile(window, share)), values, width)
    for one, other in zip(found, expected, strict=True):
        assert one is not None
        assert other is not None
        # numpy interpolates from the lower value, which may overflow on the way.
        assert one == pytest.approx(other, rel=1e-12, abs=1e-300) or not math.isfinite(other)


@settings(deadline=None)
@given(st.lists(finite, min_size=1, max_size=40), st.integers(1, 12))
def test_largest_and_smallest_are_those_of_the_window(values: list[float], width: int) -> None:
    assert pushed(Wide(Max(), width), values) == by_batch(max, values, width)
    assert pushed(Wide(Min(), width), values) == by_batch(min, values, width)


@settings(deadline=None)
@given(
    st.lists(finite, min_size=1, max_size=40),
    st.integers(1, 12),
    st.integers(0, 40),
    st.sampled_from([Sum, Mean, ZScore]),
)
def test_many_values_at_once_say_what_one_after_the_other_says(
    values: list[float], width: int, first: int, function: type[Totals]
) -> None:
    """Some come at once, in the middle."""
    keys = np.arange(len(values), dtype=np.float64)
    together, alone = function(), Wide(function(), width)
    found: list[float | None] = []
    for some in (slice(0, first), slice(first, first + 15), slice(first + 15, None)):
        if some.start == first:
            found += together.push_all(keys[some], np.array(values[some]), keys[some] - width)
        else:
            found += [
                together.push(key, value, key - width) for key, value in zip(keys[some], values[some], strict=True)
            ]
    assert found == pushed(alone, values)


def test_what_has_left_the_window_leaves_no_trace_in_a_sum() -> None:
    mean, zscore = Wide(Mean(), 3), Wide(ZScore(), 3)
    for window in (mean, zscore):
        pushed(window, [1e16, 1.0, 1e308, -1e-308, 5e-324])
    assert [mean.push(key, value) for key, value in enumerate([0.1, 0.2, 0.3], 5)][-1] == exact_mean([0.1, 0.2, 0.3])
    fresh = Wide(ZScore(), 3)
    expected = pushed(fresh, [0.1, 0.2, 0.3])[-1]
    assert [zscore.push(key, value) for key, value in enumerate([0.1, 0.2, 0.3], 5)][-1] == expected


def test_a_z_score_far_from_zero_is_that_of_exact_arithmetic_after_a_long_run() -> None:
    random = np.random.default_rng(0)
    values = (1e9 + random.normal(size=20_000) * 1e-3).tolist()
    zscore = Wide(ZScore(), 500)
    found = [zscore.push(key, value) for key, value in enumerate(values)][-1]
    *before, newest = map(Fraction, values[-500:])
    mean = sum(before, Fraction()) / len(before)
    variance = sum(((value - mean) ** 2 for value in before), Fraction()) / len(before)
    assert found == pytest.approx(float(newest - mean) / math.sqrt(variance), rel=1e-14)
    # What float64 makes of it in the textbook's way: nothing is left of the spread.
    naive = np.mean(np.square(values[-500:-1])) - np.mean(values[-500:-1]) ** 2
    assert naive != pytest.approx(float(variance), rel=0.5)


def test_a_z_score_without_a_spread_is_not_known_but_of_the_same_value() -> None:
    assert pushed(Wide(ZScore(), 4), [2.0, 2.0, 2.0, 3.0]) == [None, None, 0.0, None]


def test_a_mean_beyond_the_largest_float_is_infinite_and_comes_back() -> None:
    most = 1.7976931348623157e308
    found = pushed(Wide(Sum(), 2), [most, most, -most, -most, 1.0, 2.0])
    assert found[1:] == [math.inf, 0.0, -math.inf, 1.0 - most, 3.0]


def test_a_series_that_is_told_no_more_leaves_the_window() -> None:
    windows: list[Window] = [Sum(), Mean(), Max(), Min(), Quantile(), Changes(), Reversals(), Count(), Share()]
    for window in (Wide(window, 3) for window in windows):
        window.push(0, 1.0)
        assert window.slide(2) is not None, window
        assert window.slide(3) is None, window
        assert window.push(4, 1.0) is not None, window


def test_moves_count_only_between_values_of_the_window() -> None:
    assert pushed(Wide(Changes(), 3), [1, 2, 2, 2, 3, 3, 3]) == [0, 1, 1, 0, 1, 1, 0]
    assert pushed(Wide(Reversals(), 4), [1, 2, 1, 1, 2, 2, 2, 1]) == [0, 0, 1, 1, 1, 0, 0, 0]


def test_a_rate_leaves_out_what_came_before_its_first_second() -> None:
    rate, found = Rate(), []
    wide = Wide(rate, 3)
    for key, (value, at) in enumerate([(100.0, 0.0), (10.0, 2.0), (20.0, 4.0), (30.0, 6.0)]):
        rate.at = at
        found.append(wide.push(key, value))
    assert found == [None, 5.0, 7.5, 12.5]


def test_a_rate_in_no_time_is_not_known() -> None:
    rate = Wide(Rate(), 3)
    assert pushed(rate, [1.0, 2.0]) == [None, None]


def test_what_a_quantile_keeps_is_bounded_by_the_window() -> None:
    quantile = Quantile(0.9)
    wide = Wide(quantile, 100)
    for key in range(20_000):
        # Falling, so that what leaves lies deep in the upper heap, never on its top.
        wide.push(key, -float(key))
        assert len(quantile._low) + len(quantile._high) <= 2 * 100 + 2 * 64 + 2
    assert wide.slide(20_000 - 1) == pytest.approx(float(np.quantile(range(-19_999, -19_899), 0.9)))
