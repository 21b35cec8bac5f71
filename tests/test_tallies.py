"""Tallies as measures, from hand-made buckets against the definitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

import numpy as np
import pytest
from scalescope.numerics.formats import BF16, FP16, FloatFormat
from scalescope.numerics.tallies import MODULE_TALLIES, PARAMETER_TALLIES, PROBE_TALLIES
from scalescope_server.store.records import ProbeRow, TallyBucket
from scalescope_server.tallies import PLANS, TallyMeasure, cosine, relative_error, true_underflow

NAN = math.nan


def bucket(
    *, scale: float | None = None, periodic: bool = True, tallies: Sequence[int] | None = None, **columns: list[float]
) -> TallyBucket:
    rows = len(next(iter(columns.values())))
    counted = np.ones(rows, np.int64) if tallies is None else np.array(tallies, np.int64)
    return TallyBucket(0, scale, periodic, counted, {name: np.array(c, np.float64) for name, c in columns.items()})


def read(measure: TallyMeasure, *parts: TallyBucket, formats: Sequence[FloatFormat] = (FP16, FP16)) -> list[float]:
    return list(PLANS[measure].read(parts, formats).tolist())


def test_every_measure_reads_columns_of_the_catalogue() -> None:
    catalogue = {"parameter": PARAMETER_TALLIES, "module": MODULE_TALLIES, "probe": PROBE_TALLIES}
    assert set(PLANS) == set(get_args(TallyMeasure))
    assert all(set(plan.columns) <= set(catalogue[plan.kind]) for plan in PLANS.values())


def test_a_share_over_time_is_of_sums_and_not_a_mean_of_shares() -> None:
    parts = [bucket(unchanged=[1.0, 0.0], with_gradient=[2.0, 4.0]), bucket(unchanged=[0.0, 4.0], with_gradient=[6, 4])]
    assert read("unchanged_share", *parts) == [1 / 8, 4 / 8]


def test_periodic_tallies_alone_make_a_share_where_a_row_has_any() -> None:
    by_clock = bucket(lost=[1.0, NAN], reference_nonzero=[4.0, NAN], tallies=[1, 0])
    asked = bucket(lost=[4.0, 2.0], reference_nonzero=[4.0, 4.0], periodic=False)
    assert read("true_underflow", by_clock, asked) == [0.25, 0.5]
    assert read("true_underflow", asked) == [1.0, 0.5]


def test_the_update_ratio_is_of_norms() -> None:
    assert read("update_ratio", bucket(update_squares=[9.0, 0.0], weight_squares=[900.0, 4.0])) == [0.1, 0.0]
    np.testing.assert_equal(
        read("update_ratio", bucket(update_squares=[1.0, 1], weight_squares=[0.0, NAN])), [NAN, NAN]
    )


def test_an_update_is_absorbed_in_the_format_asked_about() -> None:
    counts = bucket(intended=[10.0, 10.0], absorbed_fp16=[1.0, 1.0], absorbed_bf16=[8.0, 8.0])
    assert read("absorbed_share", counts, formats=[FP16, BF16]) == [0.1, 0.8]


def test_the_largest_output_is_over_all_tallies_and_its_headroom_in_octaves() -> None:
    parts = [bucket(forward_amax=[4.0, NAN]), bucket(forward_amax=[65504.0 / 8, NAN], periodic=False)]
    np.testing.assert_equal(read("forward_amax", *parts), [65504.0 / 8, NAN])
    np.testing.assert_equal(read("forward_headroom", *parts), [3.0, NAN])
    assert read("forward_headroom", bucket(forward_amax=[0.0, 1.0]), formats=[FP16, BF16]) == [
        math.inf,
        math.log2(BF16.max_finite),
    ]


def test_gradients_of_outputs_are_told_unscaled_and_their_headroom_as_they_stood() -> None:
    parts = [bucket(grad_output_amax=[65504.0 / 2], scale=65536.0), bucket(grad_output_amax=[1.0], scale=1.0)]
    assert read("grad_output_amax", *parts) == [1.0]
    assert read("grad_output_headroom", *parts, formats=[FP16]) == [1.0]


@pytest.mark.parametrize("scale", [None, 0.0])
def test_without_a_scale_there_is_nothing_to_undo(scale: float | None) -> None:
    assert read("grad_output_amax", bucket(grad_output_amax=[3.0], scale=scale)) == [3.0]


def test_a_probe_tells_what_was_lost_how_far_off_and_at_which_angle() -> None:
    rng = np.random.default_rng(3)
    reference = rng.normal(size=100)
    own = np.where(np.abs(reference) < 0.1, 0.0, reference * 1.01)
    found = {
        "lost": [float(((own == 0) & (reference != 0)).sum())],
        "reference_nonzero": [100.0],
        "error_squares": [float(((own - reference) ** 2).sum())],
        "reference_squares": [float((reference**2).sum())],
        "own_squares": [float((own**2).sum())],
        "products": [float((own * reference).sum())],
    }
    probe = ProbeRow(0, 0, 0.0, {}, np.zeros(1, np.int64), {name: np.array(v) for name, v in found.items()})
    assert true_underflow(probe).tolist() == [(np.abs(reference) < 0.1).mean()]
    norm = np.linalg.norm
    assert relative_error(probe).tolist() == [pytest.approx(norm(own - reference) / norm(reference))]
    assert cosine(probe).tolist() == [pytest.approx(own @ reference / (norm(own) * norm(reference)))]


def test_nothing_of_nothing_is_not_known() -> None:
    nothing = {name: np.zeros(1) for name in PROBE_TALLIES}
    probe = ProbeRow(0, 0, 0.0, {}, np.zeros(1, np.int64), nothing)
    for read_probe in (true_underflow, relative_error, cosine):
        assert np.isnan(read_probe(probe)).all()
    assert np.isnan(cosine(ProbeRow(0, 0, 0.0, {}, np.zeros(1, np.int64), {}))).all()


def test_what_is_infinite_is_told_without_a_warning() -> None:
    endless = [math.inf, 1e308]
    assert math.isnan(read("update_ratio", bucket(update_squares=endless, weight_squares=[math.inf, 5e-324]))[0])
    assert read("grad_output_amax", bucket(scale=1e-310, grad_output_amax=[1e300, 0.0])) == [math.inf, 0.0]
    columns = {name: np.array([math.inf, 0.0]) for name in PROBE_TALLIES}
    probe = ProbeRow(0, 0, 0.0, {}, np.arange(2), columns | {"own_squares": np.array([0.0, math.inf])})
    for read_probe in (true_underflow, relative_error, cosine):
        assert np.isnan(read_probe(probe)).all()
