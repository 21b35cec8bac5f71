"""A measure of one layer over many steps, evaluated at once, against the same step by step."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from scalescope.numerics.exponents import BINS, Histograms
from scalescope.numerics.formats import FP16
from scalescope.numerics.measures import MeasureName, evaluate
from scalescope.packing import Trimmed
from scalescope_server.figures.over_time import alike, join_samples, join_tallies, series_of
from scalescope_server.figures.walls import as_parts
from scalescope_server.store.records import SampleBucket, TallyBucket
from scalescope_server.tallies import PLANS

RNG = np.random.default_rng(5)
SCALES = (None, 0.0, 1024.0, 65536.0)


def steps() -> list[tuple[int, float | None, bool]]:
    """(step, scale, periodic) of the buckets of 40 steps, one to three each."""
    found = {
        (step, SCALES[RNG.integers(4)], bool(RNG.integers(2))) for step in range(40) for _ in range(RNG.integers(1, 4))
    }
    return sorted(found, key=lambda place: (place[0], str(place[1]), place[2]))


def table() -> Histograms:
    counts = RNG.integers(0, 3, (1, BINS)) * (RNG.random((1, BINS)) < 0.2) * RNG.integers(0, 2)
    zero, inf, nan = RNG.integers(0, 2, (3, 1))
    return Histograms(counts, zero, inf, nan, RNG.random(1), RNG.random(1))


@pytest.mark.parametrize("name", ["subnormal_share", "flush_energy", "amax", "norm", "nonfinite"])
def test_a_measure_of_samples_is_what_it_is_step_by_step(name: MeasureName) -> None:
    samples = [
        SampleBucket(step, scale, periodic, RNG.integers(0, 3, 1), Trimmed.of(table()))
        for step, scale, periodic in steps()
    ]
    groups = alike(samples, join_samples)
    found = series_of((g.steps, evaluate(name, as_parts(g.parts), [FP16] * len(g.steps))) for g in groups)
    each = [
        (step, float(evaluate(name, as_parts(list(some)), [FP16])[0]))
        for step, some in groupby(samples, lambda bucket: bucket.step)
    ]
    known = [(step, value) for step, value in each if np.isfinite(value)]
    assert found.step.tolist() == [step for step, _ in known]
    np.testing.assert_allclose(found.last, [value for _, value in known], rtol=1e-12)
    assert len(groups) < 40


def test_a_measure_of_tallies_is_what_it_is_step_by_step() -> None:
    plan = PLANS["update_ratio"]
    tallies = [
        TallyBucket(step, scale, periodic, RNG.integers(0, 3, 1), {name: RNG.random(1) for name in plan.columns})
        for step, scale, periodic in steps()
    ]
    found = series_of((g.steps, plan.read(g.parts, [FP16] * len(g.steps))) for g in alike(tallies, join_tallies))
    each = {step: plan.read(list(some), [FP16])[0] for step, some in groupby(tallies, lambda bucket: bucket.step)}
    assert found.step.tolist() == list(each)
    np.testing.assert_allclose(found.last, list(each.values()), rtol=1e-12)


def test_of_nothing_there_is_no_step() -> None:
    assert series_of([]).step.tolist() == []
    assert alike([], join_samples) == []
