"""Samples as answers, from hand-made buckets."""

from __future__ import annotations

import math

import numpy as np
from scalescope.numerics.exponents import MIN_EXPONENT, Histograms
from scalescope.numerics.formats import FP16, FloatFormat
from scalescope.packing import Trimmed
from scalescope_server.layer_rows import LayerRow
from scalescope_server.samples import histogram_answer, sample_layers
from scalescope_server.store.records import SampleBucket


def row(name: str, computed: FloatFormat | None = FP16) -> LayerRow:
    return LayerRow(name, 0, computed)


def bucket(
    step: int, exponent: int, *, scale: float | None = 2.0, periodic: bool = True, samples: int = 1, rows: int = 1
) -> SampleBucket:
    """Four values of 2^exponent a row and sample."""
    table = Histograms.empty(rows)
    table.counts[:, exponent - MIN_EXPONENT] = 4 * samples
    table.amax[:], table.sum_squares[:] = 2.0**exponent, 4 * samples * 4.0**exponent
    return SampleBucket(step, scale, periodic, np.full(rows, samples), Trimmed.of(table))


def test_periodic_samples_and_those_after_trouble_add_exactly_at_one_scale() -> None:
    answer = histogram_answer("p", "grad", 8, [bucket(0, 1), bucket(0, 3, periodic=False), bucket(0, 1, scale=4.0)])
    assert (answer.step, answer.scale, answer.samples) == ([0, 0], [2.0, 4.0], [2, 1])
    assert (answer.exponents, answer.counts) == ([1, 2, 3], [[4, 0, 4], [4, 0, 0]])


def test_the_lowest_and_the_highest_exponent_are_in_range() -> None:
    answer = histogram_answer("p", "grad", 1, [bucket(0, -126), bucket(1, 127)])
    assert (answer.exponents[0], answer.exponents[-1]) == (-126, 127)
    assert (answer.counts[0][0], answer.counts[1][-1]) == (4, 4)


def test_scales_that_are_no_number_are_told() -> None:
    answer = histogram_answer("p", "grad", 1, [bucket(0, 0, scale=None), bucket(1, 0, scale=math.inf)])
    assert answer.scale == [None, "inf"]


def test_a_bucket_without_a_sample_of_the_parameter_is_left_out() -> None:
    assert histogram_answer("p", "grad", 1, [bucket(0, 0, samples=0)]).step == []


def test_an_average_uses_the_periodic_samples_where_there_are_any() -> None:
    samples = [bucket(0, -20, scale=1.0), bucket(0, 3, scale=1.0, periodic=False), bucket(8, 3, periodic=False)]
    answer = sample_layers("subnormal_share", "grad", 8, samples, [row("p")])
    assert (answer.step, answer.samples, answer.values) == ([0, 8], [2, 1], [[1.0, 0.0]])


def test_what_is_subnormal_in_an_unknown_format_is_not_guessed() -> None:
    rows = [row("known"), row("other", None)]
    answer = sample_layers("subnormal_share", "grad", 1, [bucket(0, -20, rows=2)], rows)
    assert answer.values[0] == [1.0]
    assert math.isnan(answer.values[1][0] or 0.0)
    assert sample_layers("amax", "grad", 1, [bucket(0, -20, rows=2)], rows).values[1] == [2.0**-21]


def test_parameters_without_samples_are_rows_without_columns() -> None:
    answer = sample_layers("norm", "grad", 1, [], [row("a"), row("b")])
    assert (answer.parameters, answer.step, answer.values) == (["a", "b"], [], [[], []])
