"""Series out of the store: exact where they fit, the finest level where not, never more than asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from scalescope_server.store.curves import MAX_POINTS
from scalescope_server.store.engine import Store, open_store

from tests.batches import Dictation, batch, hello, histograms

pytestmark = pytest.mark.both_engines

LENGTH = 20_000


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A run of 20,000 updates that skipped once, at 12,345."""
    store = open_store(str(tmp_path_factory.mktemp("long") / "scalescope.db"))
    losses = [float(step % 1000) for step in range(LENGTH)]
    store.writer.append(batch(hello(), Dictation().steps(0, LENGTH, loss=losses, skipped={12_345: 1.0}))).result()
    yield store
    store.close()


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database)
    yield opened
    opened.close()


@pytest.mark.parametrize("points", [-5, 0, 1, 2, 40, 300, 313, 1500, 10**9])
def test_a_view_has_at_most_as_many_points_as_asked_for(long: Store, points: int) -> None:
    bucket, found = long.reader.series("run", ["loss", "attempted"], points=points)
    assert len(found["loss"].step) <= min(max(points, 1), MAX_POINTS)
    assert found["loss"].step.tolist() == list(range(0, LENGTH, bucket))
    assert int(found["loss"].n.sum()) == LENGTH


def test_one_skip_is_seen_at_every_zoom(long: Store) -> None:
    for points in (1, 5, 50, 500, 1500):
        _, found = long.reader.series("run", ["skipped", "applied"], points=points)
        assert found["skipped"].sum.sum() == 1
        assert (found["skipped"].max.max(), found["applied"].min.min()) == (1, 0)
        assert found["applied"].sum.sum() == LENGTH - 1


def test_a_range_that_fits_is_exact(long: Store) -> None:
    bucket, found = long.reader.series("run", ["skipped"], start=12_000, stop=13_000)
    assert (bucket, found["skipped"].step.tolist()) == (1, list(range(12_000, 13_000)))
    assert np.flatnonzero(found["skipped"].last).tolist() == [345]


def test_a_bucket_at_the_edge_of_a_range_is_whole(long: Store) -> None:
    bucket, found = long.reader.series("run", ["attempted"], start=70, stop=1000, points=20)
    assert bucket == 64
    assert (found["attempted"].step[0], found["attempted"].n[0]) == (64, 64)
    assert found["attempted"].step[-1] == 960


@pytest.mark.parametrize("span", [(50_000, None), (10, 10), (10, 5), (-5, 0)])
def test_an_empty_range_is_an_empty_series(long: Store, span: tuple[int, int | None]) -> None:
    bucket, found = long.reader.series("run", ["loss", "applied"], start=span[0], stop=span[1])
    assert (bucket, len(found["loss"].step), len(found["applied"].step)) == (1, 0, 0)


def test_names_that_the_run_does_not_have_read_as_nothing(long: Store) -> None:
    for points in (10, 10**6):
        _, found = long.reader.series("run", ["absent", "growth_tracker"], points=points)
        assert [len(series.step) for series in found.values()] == [0, 0]


def test_values_that_are_not_finite_are_counted_and_never_folded(store: Store) -> None:
    values = [1.0, math.nan, math.inf, -math.inf, 4.0, math.nan, 2.0, math.inf]
    store.writer.append(batch(hello(), Dictation().steps(0, 8, loss=values, mine=values))).result()
    for points, counts in ((8, [1, 0, 0, 0, 1, 0, 1, 0]), (1, [3])):
        _, found = store.reader.series("run", ["loss", "mine"], points=points)
        for series in found.values():
            assert series.n.tolist() == counts
            assert (int(series.nan.sum()), int(series.inf.sum())) == (2, 3)
            assert (np.nanmin(series.min), np.nanmax(series.max), np.nansum(series.sum)) == (1.0, 4.0, 7.0)
            assert math.isnan(series.last[-1])


def test_every_name_of_the_run_is_listed(store: Store) -> None:
    say = Dictation()
    layout, sample = say.layout(("w", "fp16")), say.sample(0, histograms([0]))
    store.writer.append(batch(hello(), layout, sample, say.steps(0, 1, loss=[1.0], amax=[2.0], mine=[3.0]))).result()
    assert store.reader.series_names("run") == [
        "amax",
        "applied",
        "attempted",
        "flush_share",
        "grad_norm",
        "loss",
        "mine",
        "skipped",
        "subnormal_share",
        "user/amax",
        "zero_share",
    ]
    _, found = store.reader.series("run", ["amax", "user/amax"])
    assert (found["amax"].last.tolist(), found["user/amax"].last.tolist()) == ([1.0 / 65536], [2.0])


def test_a_second_sample_of_a_step_does_not_tell_its_series_twice(store: Store) -> None:
    say = Dictation()
    first, second = say.sample(0, histograms([0])), say.sample(0, histograms([4]), reason="request")
    layout = say.layout(("w", "fp16"))
    store.writer.append(batch(hello(), layout, first)).result()
    store.writer.append(batch(hello(), second)).result()
    amax = store.reader.series("run", ["amax"])[1]["amax"]
    assert amax.last.tolist() == [1.0 / 65536]
    assert store.reader.series("run", ["amax"], points=1)[1]["amax"].n.tolist() == [1]
