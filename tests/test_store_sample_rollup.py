"""Samples in buckets: added at one scale only, every row counting what it rests on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np
import pytest
from scalescope.numerics.exponents import Histograms
from scalescope.wire import SampleReason
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.errors import BadRecord
from scalescope_server.store.records import SampleBucket
from scalescope_server.store.views import MAX_BUCKETS

from tests.batches import Dictation, batch, hello, histograms, same

pytestmark = pytest.mark.both_engines

Plan = tuple[int, float | None, SampleReason]


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database)
    yield opened
    opened.close()


def tell(store: Store, plans: Sequence[Plan], *, per_batch: int = 5) -> dict[Plan, Histograms]:
    """Send samples of two parameters as planned; the answer is what was sent."""
    rng = np.random.default_rng(7)
    sent = {plan: histograms(*rng.integers(-9, 10, (2, 6)).tolist(), zero=int(rng.integers(4))) for plan in plans}
    say = Dictation()
    store.writer.append(batch(hello(), say.layout(("a", "fp16"), ("b", None)))).result()
    records = [say.sample(step, sent[step, scale, reason], scale=scale, reason=reason) for step, scale, reason in plans]
    for first in range(0, len(records), per_batch):
        store.writer.append(batch(hello(), *records[first : first + per_batch])).result()
    return sent


def test_levels_equal_the_sum_of_the_exact_samples_of_their_bucket_and_scale(store: Store) -> None:
    scales: list[float | None] = [65536.0, 1024.0, None]
    reasons: list[SampleReason] = ["periodic", "skip"]
    plans = [(step, scales[step % 3], reasons[step % 5 == 0]) for step in range(700)]
    sent = tell(store, plans)
    for points, size in ((100, 8), (12, 64), (2, 512), (1, 4096)):
        expected: defaultdict[tuple[int, float | None, bool], list[Histograms]] = defaultdict(list)
        for (step, scale, reason), table in sent.items():
            expected[step // size * size, scale, reason == "periodic"].append(table)
        bucket, found = store.reader.samples("run", points=points)
        assert bucket == size
        assert {(row.step, row.scale, row.periodic) for row in found} == set(expected)
        for row in found:
            tables = expected[row.step, row.scale, row.periodic]
            assert row.samples.tolist() == [len(tables)] * 2
            assert same(row.table, reduce(Histograms.merge, tables))


def test_exact_samples_come_back_as_they_were_sent(store: Store) -> None:
    sent = tell(store, [(step, 8.0, "periodic") for step in range(0, 300, 10)])
    bucket, found = store.reader.samples("run", start=100, stop=200)
    assert (bucket, [row.step for row in found]) == (1, list(range(100, 200, 10)))
    assert all(same(row.table, sent[row.step, 8.0, "periodic"]) for row in found)


def test_some_parameters_can_be_asked_for_alone(store: Store) -> None:
    sent = tell(store, [(step, 8.0, "periodic") for step in range(400)])
    for points in (300, 10):
        whole = store.reader.samples("run", points=points)[1]
        alone = store.reader.samples("run", points=points, parameters=[1])[1]
        assert [row.table.rows for row in alone] == [1] * len(whole)
        assert all(same(one.table, row.table.take([1])) for one, row in zip(alone, whole, strict=True))
    assert len(sent) == 400


def test_a_sample_of_some_parameters_counts_for_those_alone(store: Store) -> None:
    say = Dictation()
    layout = say.layout(("a", None), ("b", None), ("c", None))
    first = say.sample(0, histograms([5], [1]), parameters=[2, 0])
    records = [first, *(say.sample(step, histograms([0], [0], [0])) for step in range(1, 9))]
    store.writer.append(batch(hello(), layout, *records)).result()
    (exact, *_), (rolled, _) = store.reader.samples("run")[1], store.reader.samples("run", points=2)[1]
    assert (exact.samples.tolist(), exact.table.amax.tolist()) == ([1, 0, 1], [2.0, 0.0, 32.0])
    assert (rolled.samples.tolist(), rolled.table.amax.tolist()) == ([8, 7, 8], [2.0, 1.0, 32.0])


def test_parameters_that_join_later_have_rows_of_nothing_before(store: Store) -> None:
    say = Dictation()
    store.writer.append(
        batch(hello(), say.layout(("a", None)), *(say.sample(step, histograms([0])) for step in range(3)))
    ).result()
    larger = say.layout(("a", None), ("b", None))
    store.writer.append(
        batch(hello(), larger, *(say.sample(step, histograms([0], [1])) for step in range(3, 6)))
    ).result()
    (rolled,) = store.reader.samples("run", points=1)[1]
    assert (rolled.samples.tolist(), rolled.table.amax.tolist()) == ([6, 3], [1.0, 2.0])


@pytest.mark.parametrize("scale", [math.inf, math.nan, 0.0])
def test_a_scale_that_is_no_scale_is_kept_as_it_came(store: Store, scale: float) -> None:
    tell(store, [(0, scale, "skip"), (1, scale, "skip"), (2, None, "skip")])
    for points, rows in ((300, 3), (1, 2)):
        found = [row.scale for row in store.reader.samples("run", points=points)[1]]
        assert len(found) == rows
        assert any(value is not None and np.array_equal(value, scale, equal_nan=True) for value in found)
        assert found.count(None) == 1


def test_a_view_never_has_more_than_300_buckets(store: Store) -> None:
    tell(store, [(step, 8.0, "periodic") for step in range(0, 3000, 3)], per_batch=200)
    bucket, found = store.reader.samples("run", points=10**6)
    assert (bucket, len(found) <= MAX_BUCKETS) == (64, True)
    assert sum(row.samples[0] for row in found) == 1000


def test_a_large_model_is_shown_in_coarser_buckets(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    tell(store, [(step, 8.0, "periodic") for step in range(200)])
    monkeypatch.setattr("scalescope_server.store.views.MAX_CELLS", 254 * 2 * 30)
    assert store.reader.samples("run")[0] == 8
    assert store.reader.samples("run", parameters=[0])[0] == 8
    assert len(store.reader.samples("run")[1]) <= 30


def test_every_scale_of_a_bucket_counts_towards_the_size_of_an_answer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(store, [(step, 2.0 ** (step % 4), "skip" if step % 8 < 4 else "periodic") for step in range(400)])
    monkeypatch.setattr("scalescope_server.store.views.MAX_CELLS", 254 * 2 * 60)
    # 50 buckets of 8 steps would fit, and hold 400 tables.
    bucket, found = store.reader.samples("run", points=60)
    assert (bucket, len(found)) == (64, 56)
    assert sum(int(row.samples[0]) for row in found) == 400
    # The coarsest level is answered whatever it holds.
    monkeypatch.setattr("scalescope_server.store.views.MAX_CELLS", 1)
    bucket, found = store.reader.samples("run", points=60)
    assert (bucket, len(found)) == (512, 8)


def test_other_kinds_of_samples_are_kept_apart(store: Store) -> None:
    say = Dictation()
    layout = say.layout(("a", None))
    grad, weight = say.sample(0, histograms([0])), say.sample(0, histograms([3]), kind="weight")
    store.writer.append(batch(hello(), layout, grad, weight)).result()
    found: list[SampleBucket] = store.reader.samples("run", kind="weight")[1]
    assert [row.table.amax.tolist() for row in found] == [[8.0]]
    assert store.reader.series("run", ["amax"])[1]["amax"].last.tolist() == [1.0 / 65536]


def test_counts_that_could_overflow_a_sum_are_refused(store: Store) -> None:
    say = Dictation()
    table = histograms([0])
    table.zero[:] = 2**39
    with pytest.raises(BadRecord, match="expected tensors of at most"):
        store.writer.append(batch(hello(), say.layout(("a", None)), say.sample(0, table))).result()
