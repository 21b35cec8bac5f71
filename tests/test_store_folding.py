"""Which levels of samples and tallies are kept, and that a bucket is the same however its records came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from scalescope.wire import Hello, Record
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.levels import LEVELS, bucket_size, lowest_for
from scalescope_server.store.records import SampleBucket

from tests.batches import Dictation, batch, hello, histograms, same

pytestmark = pytest.mark.both_engines


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database)
    yield opened
    opened.close()


def records(steps: Sequence[int], *, seed: int = 7) -> list[Record]:
    """A sample and a tally of two parameters at each of ``steps``, at two scales; the sums of squares are exact."""
    rng, say = np.random.default_rng(seed), Dictation()
    found: list[Record] = [say.layout(("a", "fp16"), ("b", None), modules=["m"])]
    for step in steps:
        scale = float(2 ** rng.integers(10, 12))
        found.append(say.sample(step, histograms(*rng.integers(-9, 10, (2, 6)).tolist()), scale=scale))
        found.append(say.tally(step, scale=scale, looked=rng.integers(0, 9, 2).tolist()))
    return found


def tell(store: Store, caller: Hello, told: Sequence[Record], per_batch: int) -> None:
    for first in range(0, len(told), per_batch):
        store.writer.append(batch(caller, *told[first : first + per_batch])).result()


def levels(store: Store, run: str) -> Iterator[tuple[int, list[SampleBucket]]]:
    for points in (250, 60, 8, 1):
        yield store.reader.samples(run, points=points)


def test_samples_are_kept_from_the_first_level_that_holds_several() -> None:
    assert [lowest_for(every) for every in (1, 7, 8, 10, 63, 64, 1000)] == [1, 1, 2, 2, 2, 3, 4]
    assert lowest_for(2**31 - 1) == LEVELS
    assert all(bucket_size(lowest_for(every)) > every for every in range(1, 5000))


@pytest.mark.parametrize("every", [1, 10])
def test_a_bucket_is_the_same_however_its_samples_were_split_into_batches(store: Store, every: int) -> None:
    told = records(range(0, 300 * every, every))
    for name, per_batch in (("one", 40), ("many", 1000)):
        tell(store, hello(name, world_size=1, every=every), told, per_batch)
    for (size, one), (_, many) in zip(levels(store, "one"), levels(store, "many"), strict=True):
        assert [(b.step, b.scale) for b in one] == [(b.step, b.scale) for b in many]
        assert all(same(a.table, b.table) for a, b in zip(one, many, strict=True))
        assert sum(int(bucket.samples[0]) for bucket in one) == 300
        assert size > every
    for points in (250, 8, 1):
        one_size, ones = store.reader.tallies("one", "parameter", ["looked"], [0, 1], points=points)
        size, found = store.reader.tallies("many", "parameter", ["looked"], [0, 1], points=points)
        assert one_size == size > every
        pairs = zip(ones, found, strict=True)
        assert all(np.array_equal(a.columns["looked"], b.columns["looked"]) for a, b in pairs)


def test_counts_may_outgrow_every_width(store: Store) -> None:
    say, table = Dictation(), histograms([0, 3])
    table.counts[:] *= 2**31
    told: list[Record] = [say.layout(("a", "fp16")), *(say.sample(step, table, scale=1.0) for step in range(64))]
    for first in range(0, len(told), 5):
        tell(store, hello(world_size=1), told[first : first + 5], 5)
    (whole,) = store.reader.samples("run", points=1)[1]
    assert sorted(set(whole.table.counts[0].tolist())) == [0, 2**37]


def test_samples_ten_apart_are_not_kept_a_second_time_one_by_one(store: Store) -> None:
    tell(store, hello(world_size=1, every=10), records(range(0, 3000, 10)), 100)
    assert store.reader.samples("run", points=299)[0] == 64


def test_a_run_that_kept_a_finer_level_keeps_it_to_its_end(store: Store) -> None:
    tell(store, hello("run", "first", world_size=1, every=1), records(range(200)), 100)
    tell(store, hello("run", "second", world_size=1, every=10), records(range(0, 2000, 10), seed=8), 100)
    size, found = store.reader.samples("run", points=299)
    assert size == 8
    assert sum(int(bucket.samples[0]) for bucket in found) == 400


def test_a_run_that_is_sampled_more_often_later_keeps_what_it_began_with(store: Store) -> None:
    tell(store, hello("run", "first", world_size=1, every=10), records(range(0, 500, 10)), 100)
    tell(store, hello("run", "second", world_size=1, every=1), records(range(300), seed=8), 100)
    size, found = store.reader.samples("run", points=299)
    assert size == 64
    assert sum(int(bucket.samples[0]) for bucket in found) == 350
