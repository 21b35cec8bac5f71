"""Named measures over buckets that mix scales and kinds of samples, against plain arithmetic on the values."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from scalescope.numerics.formats import FP16, FP32
from scalescope.numerics.measure import measure
from scalescope.numerics.measures import MeasureName, Part, evaluate

RNG = np.random.default_rng(0)
TRUE = [(RNG.standard_normal(4000) * 1e-7).astype(np.float32) for _ in range(2)]


def part(scale: float | None, *, periodic: bool = True, samples: int = 1) -> Part:
    """The same two gradients, as they stand at ``scale``."""
    table = measure([torch.from_numpy(values * np.float32(scale or 1.0)) for values in TRUE]).result()
    return Part(table, scale, np.full(2, samples, np.int64), periodic)


def value(name: MeasureName, *parts: Part) -> float:
    return float(evaluate(name, parts, [FP16, FP16])[0])


def test_a_bucket_that_mixes_scales_compares_each_sample_at_its_own() -> None:
    small = np.abs(TRUE[0])
    truth = np.mean([(small * s < 2.0**-25).mean() for s in (16.0, 128.0)])
    assert value("flush_share", part(16.0), part(128.0)) == pytest.approx(truth, abs=1e-12)
    subnormal = np.mean([(small * s < 2.0**-14).mean() for s in (16.0, 2.0**16)])
    assert value("subnormal_share", part(16.0), part(2.0**16)) == pytest.approx(subnormal, abs=1e-12)


def test_the_norm_and_amax_are_divided_by_the_scale() -> None:
    assert value("norm", part(1024.0), part(2.0**16)) == pytest.approx(float(np.linalg.norm(TRUE[0])), rel=1e-5)
    assert value("amax", part(1024.0)) == float(np.abs(TRUE[0]).max())
    assert value("amax", part(None)) == float(np.abs(TRUE[0]).max())


def test_samples_taken_after_trouble_do_not_bias_an_average() -> None:
    after = Part(measure([torch.zeros(4000), torch.zeros(4000)]).result(), 16.0, np.ones(2, np.int64), periodic=False)
    assert value("zero_share", part(16.0), after) == 0.0
    assert value("zero_share", after) == 1.0


def test_non_finite_values_are_counted_from_every_sample() -> None:
    bad = torch.tensor([1.0, float("inf"), float("nan")])
    after = Part(measure([bad, bad]).result(), 16.0, np.ones(2, np.int64), periodic=False)
    assert value("nonfinite", part(16.0), after) == 2.0


@pytest.mark.parametrize(("name", "edge"), [("subnormal_energy", 2.0**-14), ("flush_energy", 2.0**-25)])
def test_an_energy_is_bounded_from_above_and_each_scale_counts_alike(name: MeasureName, edge: float) -> None:
    parts = [part(16.0), part(1024.0)]
    true = np.stack([np.abs(TRUE[0].astype(np.float64)) * scale for scale in (16.0, 1024.0)])
    share = np.mean([(row[row < edge] ** 2).sum() / (row**2).sum() for row in true])
    found = evaluate(name, parts, [FP16, FP32])
    assert share <= found[0] <= share + 0.5
    assert found[0] == pytest.approx(np.mean([evaluate(name, [p], [FP16, FP32])[0] for p in parts]))


def test_an_energy_beyond_float64_is_not_known() -> None:
    table = measure([torch.full((2,), 1e200, dtype=torch.float64)]).result()
    huge = Part(table, 1.0, np.ones(1, np.int64), periodic=True)
    table.sum_squares[:], table.counts[:, -1], table.amax[:] = np.inf, 2, 1e200
    assert np.isnan(evaluate("flush_energy", [huge], [FP16])).all()


def test_the_energy_of_subnormals_is_of_each_rows_own_format() -> None:
    assert evaluate("subnormal_energy", [part(1.0)], [FP16, FP32]).tolist() == [1.0, pytest.approx(0.0, abs=1e-50)]
    assert np.isnan(evaluate("subnormal_energy", [part(1.0)], [FP16, None])[1])


def test_a_row_without_samples_has_no_value() -> None:
    table = measure([torch.ones(3), torch.empty(0)]).result()
    one = Part(table, 1.0, np.array([1, 0]), periodic=True)
    for name in get_args(MeasureName):
        found = evaluate(name, [one], [FP16, FP32])
        assert not np.isnan(found[0])
        assert np.isnan(found[1])


def test_each_row_uses_its_own_compute_format() -> None:
    shares = evaluate("subnormal_share", [part(1.0)], [FP16, FP32])
    assert shares[0] == 1.0
    assert shares[1] == 0.0


def test_where_the_compute_format_is_not_known_the_subnormals_are_not_either() -> None:
    shares = evaluate("subnormal_share", [part(1.0)], [FP16, None])
    assert shares[0] == 1.0
    assert np.isnan(shares[1])
    assert not np.isnan(evaluate("zero_share", [part(1.0)], [FP16, None])).any()
