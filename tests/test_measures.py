"""Named measures over buckets that mix scales and kinds of samples, against plain arithmetic on the values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scalescope.numerics.formats import FP16, FP32
from scalescope.numerics.measure import measure
from scalescope.numerics.measures import MeasureName, Part, evaluate, measure_names, totals

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


def test_a_row_without_samples_has_no_value() -> None:
    table = measure([torch.ones(3), torch.empty(0)]).result()
    one = Part(table, 1.0, np.array([1, 0]), periodic=True)
    for name in measure_names():
        found = evaluate(name, [one], [FP16, FP32])
        assert not np.isnan(found[0])
        assert np.isnan(found[1])


def test_each_row_uses_its_own_compute_format() -> None:
    shares = evaluate("subnormal_share", [part(1.0)], [FP16, FP32])
    assert shares[0] == 1.0
    assert shares[1] == 0.0


def test_the_totals_of_a_sample_are_those_of_all_values_together() -> None:
    table, whole = part(16.0).table, np.concatenate(TRUE).astype(np.float64)
    found = totals(table, 16.0, [FP16, FP16])
    assert found["grad_norm"] == pytest.approx(float(np.linalg.norm(whole)), rel=1e-5)
    assert found["amax"] == float(np.abs(whole).max())
    assert found["zero_share"] == 0.0
    assert found["flush_share"] == pytest.approx((np.abs(whole) * 16 < 2.0**-25).mean())


def test_a_share_of_nothing_is_left_out() -> None:
    def found(values: NDArray[np.float32]) -> set[str]:
        return set(totals(measure([torch.from_numpy(values)]).result(), 1.0, [FP16]))

    assert found(np.zeros(4, np.float32)) == {"amax", "grad_norm", "zero_share", "subnormal_share"}
    assert found(np.zeros(0, np.float32)) == {"amax", "grad_norm"}
