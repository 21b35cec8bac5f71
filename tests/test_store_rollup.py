"""Levels equal what a recomputation from the exact rows gives, however the data came."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scalescope_server.store.engine import open_store
from scalescope_server.store.levels import bucket_size, finest, levels_for
from scalescope_server.store.records import Series
from scalescope_server.store.rollup import Points, coarser, exact

from tests.batches import Dictation, batch, hello

pytestmark = pytest.mark.both_engines

# Whole numbers add up exactly in any order.
VALUES = st.one_of(st.integers(-(2**20), 2**20).map(float), st.sampled_from([math.nan, math.inf, -math.inf]))

Row = tuple[int, int, float, float, float, float, int, int]


def recomputed(steps: Sequence[int], values: Sequence[float], size: int) -> list[Row]:
    """The rows of a level out of single values, by the definition and without numpy."""
    rows: list[Row] = []
    for bucket in sorted({step // size for step in steps}):
        inside = [value for step, value in sorted(zip(steps, values, strict=True)) if step // size == bucket]
        finite = [value for value in inside if math.isfinite(value)]
        last = inside[-1] if math.isfinite(inside[-1]) else math.nan
        folded = (min(finite), max(finite), last, sum(finite)) if finite else (math.nan, math.nan, last, math.nan)
        nan = sum(math.isnan(value) for value in inside)
        rows.append((bucket * size, len(finite), *folded, nan, len(inside) - len(finite) - nan))
    return rows


def rows_of(series: Series) -> list[Row]:
    columns = (series.step, series.n, series.min, series.max, series.last, series.sum, series.nan, series.inf)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def assert_same(found: list[Row], expected: list[Row]) -> None:
    np.testing.assert_array_equal(np.array(found).reshape(-1, 8), np.array(expected).reshape(-1, 8))


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[float], list[tuple[int, int, bool]]]:
    """Values of a run, and the batches (first, count, whether the values come late) it arrives in."""
    values = draw(st.lists(VALUES, min_size=1, max_size=150))
    cuts = sorted(draw(st.sets(st.integers(1, len(values)), max_size=6)) | {0, len(values)})
    pieces = [(first, end - first, draw(st.booleans())) for first, end in pairwise(cuts)]
    return values, pieces


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(deliveries(), st.booleans())
def test_levels_equal_the_exact_rows_under_any_split_and_restart(
    given_run: tuple[list[float], list[tuple[int, int, bool]]], restart: bool
) -> None:
    values, pieces = given_run
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(str(Path(folder) / "scalescope.db"))
        say, late = Dictation(), []
        for first, count, comes_late in pieces:
            told = values[first : first + count]
            columns = {"loss": told, "mine": told}
            record = say.steps(first, count) if comes_late else say.steps(first, count, **columns)
            late.extend([(first, count, columns)] if comes_late else [])
            store.writer.append(batch(hello(), record)).result()
            if restart:
                store.close()
                store = open_store(str(Path(folder) / "scalescope.db"))
        for first, count, columns in late:
            store.writer.append(batch(hello(), say.steps(first, count, **columns))).result()
        steps = range(len(values))
        for level in range(levels_for(len(values)) + 1):
            points = -(-len(values) // bucket_size(level))
            size, found = store.reader.series("run", ["loss", "mine", "attempted"], points=points)
            assert size <= bucket_size(level)
            assert_same(rows_of(found["loss"]), recomputed(steps, values, size))
            assert_same(rows_of(found["mine"]), recomputed(steps, values, size))
            assert_same(rows_of(found["attempted"]), recomputed(steps, [1.0] * len(values), size))
        store.close()


@given(st.lists(st.tuples(st.integers(0, 600), VALUES), min_size=1, unique_by=lambda pair: pair[0]))
def test_folding_a_level_from_the_one_below_equals_folding_it_from_the_values(pairs: list[tuple[int, float]]) -> None:
    steps, values = np.array([p[0] for p in pairs], np.int64), np.array([p[1] for p in pairs])
    folds = exact([Points(7, 0, steps, values)])
    for level in (1, 2, 3):
        folds = coarser(folds)
        expected = recomputed(steps.tolist(), values.tolist(), bucket_size(level))
        assert (folds.bucket * bucket_size(level)).tolist() == [row[0] for row in expected]
        assert folds.n.tolist() == [row[1] for row in expected]
        np.testing.assert_array_equal(folds.last, [row[4] for row in expected])


def test_a_level_begins_when_the_run_outgrows_the_one_below(database: str) -> None:
    store = open_store(database)
    say = Dictation()
    for first in range(0, 1200, 7):
        store.writer.append(batch(hello(), say.steps(first, 7, loss=np.arange(first, first + 7.0).tolist()))).result()
    bucket, found = store.reader.series("run", ["loss"], points=1)
    assert (bucket, found["loss"].n.tolist(), found["loss"].max.tolist()) == (4096, [1204], [1203.0])
    store.close()


def test_an_event_ahead_of_its_update_does_not_hide_the_series(database: str) -> None:
    store = open_store(database)
    say = Dictation()
    store.writer.append(batch(hello(), say.steps(0, 60, loss=[1.0] * 60))).result()
    store.writer.append(batch(hello(), say.event(70))).result()
    bucket, found = store.reader.series("run", ["loss"], points=1)
    assert (bucket, found["loss"].n.tolist()) == (64, [60])
    store.close()


def test_a_sum_that_leaves_the_range_of_floats_is_not_known(database: str) -> None:
    store = open_store(database)
    store.writer.append(batch(hello(), Dictation().steps(0, 9, loss=[1.5e308] * 9))).result()
    loss = store.reader.series("run", ["loss"], points=2)[1]["loss"]
    assert (loss.n.tolist(), loss.max.tolist()) == ([8, 1], [1.5e308, 1.5e308])
    np.testing.assert_array_equal(loss.sum, [math.nan, 1.5e308])
    store.close()


@pytest.mark.parametrize(
    ("values", "total"), [([1.0, 1.5, 1.0], math.nan), ([-1.0, -1.5, -1.0], math.nan), ([1.5, -1.0], 0.5)]
)
def test_a_sum_may_leave_the_range_of_floats_from_batch_to_batch(
    database: str, values: list[float], total: float
) -> None:
    store = open_store(database)
    say = Dictation()
    for step, value in enumerate(values):
        store.writer.append(batch(hello(), say.steps(step, 1, loss=[value * 1e308]))).result()
    loss = store.reader.series("run", ["loss"], points=1)[1]["loss"]
    assert loss.n.tolist() == [len(values)]
    np.testing.assert_allclose(loss.sum, [total * 1e308])
    store.close()


@given(st.integers(0, 2**31), st.integers(1, 2**31), st.integers(128, 1500))
def test_no_range_takes_more_buckets_than_asked_for(start: int, length: int, points: int) -> None:
    size = bucket_size(finest(start, start + length, points))
    assert (start + length - 1) // size - start // size + 1 <= points + 1
