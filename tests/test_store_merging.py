"""What several ranks measured, merged: the same as one rank would have measured of the whole."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from scalescope.numerics.exponents import Histograms
from scalescope.wire import Hello, Part, Placement, Record
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.records import SampleBucket, Series

from tests.batches import Dictation, batch, hello, histograms, same

pytestmark = pytest.mark.both_engines

RANKS = 4
PARAMETERS = (("a", "fp16"), ("b", "bf16"), ("c", None))
SHARES = ("amax", "grad_norm", "zero_share", "subnormal_share", "flush_share")


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database)
    yield opened
    opened.close()


def part(placement: Placement, elements: int, leads: bool) -> Part:
    return Part(placement, elements, leads)


def sharded(rank: int, elements: int = 2) -> list[Part]:
    """Shards of each parameter: rank 0 leads, and has none of the last one."""
    return [part("sharded", elements if (rank, i) != (0, 2) else 0, rank == 0) for i in range(len(PARAMETERS))]


@dataclass
class Trained:
    """The samples of a sharded training: what each rank sends, and what a single rank would have."""

    seed: int = 3
    shards: dict[tuple[int, int], Histograms] = field(default_factory=dict)

    def whole(self, step: int) -> Histograms:
        total = self.shards[step, 0]
        for rank in range(1, RANKS):
            total = total.merge(self.shards[step, rank])
        return total

    def draw(self, steps: Sequence[int]) -> None:
        rng = np.random.default_rng(self.seed)
        for step in steps:
            for rank in range(RANKS):
                table = histograms(*rng.integers(-30, 8, (3, 2)).tolist())
                if rank == 0:
                    table.counts[2], table.sum_squares[2], table.amax[2] = 0, 0, 0
                self.shards[step, rank] = table


def scale_at(step: int) -> float:
    return 2.0 ** (16 - step // 20)


def deliveries(trained: Trained, steps: Sequence[int], segment: str = "first") -> list[tuple[Hello, list[Record]]]:
    """The batches of all ranks, each rank's in order, a layout first, a few samples each."""
    found: list[tuple[Hello, list[Record]]] = []
    for rank in range(RANKS):
        say, caller = Dictation(), hello(segment=segment, rank=rank, world_size=RANKS)
        found.append((caller, [say.layout(*PARAMETERS, parts=sharded(rank))]))
        for first in range(0, len(steps), 3):
            some = steps[first : first + 3]
            found.append((caller, [say.sample(s, trained.shards[s, rank], scale=scale_at(s)) for s in some]))
    return found


def shuffled(batches: list[tuple[Hello, list[Record]]], seed: int) -> list[tuple[Hello, list[Record]]]:
    """In any order that keeps each rank's own."""
    order = [caller.rank for caller, _ in batches]
    random.Random(seed).shuffle(order)
    waiting = {rank: iter([each for each in batches if each[0].rank == rank]) for rank in range(RANKS)}
    return [next(waiting[rank]) for rank in order]


def tell_whole(store: Store, trained: Trained, steps: Sequence[int], run: str = "single") -> None:
    say, caller = Dictation(), hello(run, world_size=1)
    records = [say.sample(step, trained.whole(step), scale=scale_at(step)) for step in steps]
    store.writer.append(batch(caller, say.layout(*PARAMETERS), *records)).result()


def assert_same_samples(found: Sequence[SampleBucket], expected: Sequence[SampleBucket]) -> None:
    assert [(b.step, b.scale, b.periodic) for b in found] == [(b.step, b.scale, b.periodic) for b in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.samples.tolist() == other.samples.tolist()
        assert one.table.counts.tolist() == other.table.counts.tolist()
        np.testing.assert_allclose(one.table.sum_squares, other.table.sum_squares, rtol=1e-15)
        assert one.table.amax.tolist() == other.table.amax.tolist()


def assert_same_series(found: dict[str, Series], expected: dict[str, Series]) -> None:
    for name, series in expected.items():
        for column in Series.__struct_fields__:
            wanted = getattr(series, column)
            np.testing.assert_allclose(getattr(found[name], column), wanted, rtol=1e-14, err_msg=f"{name} {column}")


@pytest.mark.parametrize("seed", range(3))
def test_ranks_that_come_in_any_order_are_the_same_as_one_rank_with_the_whole(store: Store, seed: int) -> None:
    trained, steps = Trained(seed), list(range(0, 90, 2))
    trained.draw(steps)
    for caller, records in shuffled(deliveries(trained, steps), seed):
        store.writer.append(batch(caller, *records)).result()
    tell_whole(store, trained, steps)
    for points in (300, 12, 2, 1):
        bucket, expected = store.reader.samples("single", points=points)
        assert store.reader.samples("run", points=points)[0] == bucket
        assert_same_samples(store.reader.samples("run", points=points)[1], expected)
        wanted = store.reader.series("single", SHARES, points=points)[1]
        assert_same_series(store.reader.series("run", SHARES, points=points)[1], wanted)
    lacking = store.reader.series("run", ["ranks_missing"], points=300)[1]["ranks_missing"]
    assert lacking.max.tolist() == [0.0] * len(steps)


def test_batches_that_come_again_are_merged_once(store: Store) -> None:
    trained, steps = Trained(), [0, 8, 16]
    trained.draw(steps)
    for caller, records in deliveries(trained, steps) * 2:
        store.writer.append(batch(caller, *records)).result()
    tell_whole(store, trained, steps)
    for points in (300, 1):
        assert_same_samples(
            store.reader.samples("run", points=points)[1], store.reader.samples("single", points=points)[1]
        )


def test_a_rank_that_comes_hours_later_completes_what_the_others_told(store: Store) -> None:
    trained, steps = Trained(), list(range(0, 80, 8))
    trained.draw(steps)
    batches = deliveries(trained, steps)
    late = [each for each in batches if each[0].rank == 2]
    for caller, records in [each for each in batches if each[0].rank != 2]:
        store.writer.append(batch(caller, *records)).result()
    names = ["grad_norm", "ranks_missing"]
    before = store.reader.series("run", names)[1]
    assert before["ranks_missing"].last.tolist() == [1.0] * len(steps)
    coarse = store.reader.series("run", names, points=2)[1]
    assert coarse["ranks_missing"].max.tolist() == [1.0, 1.0]
    for caller, records in late:
        store.writer.append(batch(caller, *records, at=10_000.0)).result()
    after = store.reader.series("run", names)[1]
    assert after["ranks_missing"].last.tolist() == [0.0] * len(steps)
    assert (after["grad_norm"].last > before["grad_norm"].last).all()
    tell_whole(store, trained, steps)
    for points in (1500, 10, 2, 1):
        wanted = store.reader.series("single", SHARES, points=points)[1]
        assert_same_series(store.reader.series("run", SHARES, points=points)[1], wanted)


def test_a_rank_alone_shows_its_own_shard(store: Store) -> None:
    trained, steps = Trained(), [0, 8]
    trained.draw(steps)
    for caller, records in deliveries(trained, steps):
        store.writer.append(batch(caller, *records)).result()
    found = store.reader.samples("run", rank=3)[1]
    assert [same(one.table, trained.shards[one.step, 3]) for one in found] == [True, True]
    (rolled,) = store.reader.samples("run", rank=3, points=1)[1][:1]
    assert rolled.samples.tolist() == [2, 2, 2]
    own, whole = (store.reader.series("run", ["grad_norm"], rank=r)[1]["grad_norm"].last for r in (3, None))
    assert (own < whole).all()


def test_of_a_replicated_parameter_one_rank_alone_is_heard(store: Store) -> None:
    table = histograms([0] * 8, [1] * 8, [2] * 8)
    for rank in range(2):
        say = Dictation()
        parts = [part("replicated", 8 if rank == 0 else 0, rank == 0)] * 3
        records: list[Record] = [say.layout(*PARAMETERS, parts=parts), say.sample(0, table), say.sample(8, table)]
        store.writer.append(batch(hello(rank=rank), *records)).result()
    for points, samples in ((300, 1), (1, 2)):
        found = store.reader.samples("run", points=points)[1][0]
        assert (found.samples.tolist(), found.table.numel.tolist()) == ([samples] * 3, [8 * samples] * 3)
    # One rank tells everything, so no point lacks another one.
    assert "ranks_missing" not in store.reader.series_names("run")


def test_of_a_local_parameter_every_rank_counts(store: Store) -> None:
    for rank in range(2):
        say = Dictation()
        records: list[Record] = [
            say.layout(*PARAMETERS, parts=[part("local", 8, True)] * 3),
            say.sample(0, histograms([rank], [rank], [rank])),
        ]
        store.writer.append(batch(hello(rank=rank), *records)).result()
    (found,) = store.reader.samples("run")[1]
    assert (found.samples.tolist(), found.table.amax.tolist()) == ([2, 2, 2], [2.0, 2.0, 2.0])


def test_ranks_at_different_scales_are_kept_apart_by_scale_and_add_up_unscaled(store: Store) -> None:
    for rank, scale in ((0, 8.0), (1, 4.0)):
        say = Dictation()
        records: list[Record] = [
            say.layout(("a", "fp16"), parts=[part("sharded", 4, rank == 0)]),
            say.sample(0, histograms([3 - rank]), scale=scale),
        ]
        store.writer.append(batch(hello(rank=rank), *records)).result()
    assert [(b.scale, b.samples.tolist()) for b in store.reader.samples("run")[1]] == [(8.0, [1]), (4.0, [0])]
    found = store.reader.series("run", ["grad_norm", "amax"])[1]
    assert found["grad_norm"].last.tolist() == pytest.approx([2**0.5])
    assert found["amax"].last.tolist() == [1.0]


def test_tallies_of_shards_add_up_and_modules_are_of_every_rank(store: Store) -> None:
    for rank in (1, 0):
        say = Dictation()
        layout = say.layout(("a", "fp16"), modules=["block"], parts=[part("sharded", 4, rank == 0)])
        tallies = [
            say.tally(0, update_squares=[3.0 if rank else 1.0], weight_squares=[8.0]),
            say.tally(0, subject="module", forward_amax=[2.0 + rank]),
        ]
        store.writer.append(batch(hello(rank=rank), layout, *tallies, say.steps(0, 1))).result()
    for points in (300, 1):
        (found,) = store.reader.tallies("run", "parameter", ["update_squares", "absorbed_fp16"], [0], points=points)[1]
        assert found.columns["update_squares"].tolist() == [4.0]
        assert np.isnan(found.columns["absorbed_fp16"]).all()
        assert found.tallies.tolist() == [1]
        (module,) = store.reader.tallies("run", "module", ["forward_amax"], [0], points=points)[1]
        assert (module.columns["forward_amax"].tolist(), module.tallies.tolist()) == ([3.0], [2])
    assert store.reader.series("run", ["update_ratio"])[1]["update_ratio"].last.tolist() == [0.5]
    assert store.reader.series("run", ["update_ratio"], rank=0)[1]["update_ratio"].last.tolist() == [8**-0.5]


def test_a_resumed_segment_of_more_ranks_goes_on_from_what_one_rank_had_told(store: Store) -> None:
    trained, steps = Trained(), list(range(0, 40, 2))
    trained.draw(steps)
    say, caller = Dictation(), hello(segment="alone", world_size=1)
    early = [say.sample(s, trained.whole(s), scale=scale_at(s)) for s in steps]
    store.writer.append(batch(caller, say.layout(*PARAMETERS), *early, say.steps(0, 40))).result()
    for caller, records in deliveries(trained, steps, "many"):
        store.writer.append(batch(caller, *records)).result()
    later = [(s + 40, trained.whole(s), scale_at(s)) for s in steps]
    say = Dictation()
    records = [say.sample(s, trained.whole(s), scale=scale_at(s)) for s in steps]
    records += [say.sample(step, table, scale=scale) for step, table, scale in later]
    store.writer.append(batch(hello("single", world_size=1), say.layout(*PARAMETERS), *records)).result()
    for points in (10, 1):
        expected = store.reader.samples("single", points=points)[1]
        assert_same_samples(store.reader.samples("run", points=points)[1], expected)
    for points in (300, 10, 1):
        wanted = store.reader.series("single", SHARES, points=points)[1]
        assert_same_series(store.reader.series("run", SHARES, points=points)[1], wanted)


def test_a_run_of_one_rank_has_no_second_copy_of_anything(store: Store) -> None:
    trained, steps = Trained(), list(range(0, 30, 2))
    trained.draw(steps)
    tell_whole(store, trained, steps)
    with store._reading.connect() as connection:
        for table in ("sample_rollup", "tally_rollup", "rollup", "scalar"):
            assert connection.exec_driver_sql(f"SELECT count(*) FROM {table} WHERE rank < 0").scalar_one() == 0
        assert connection.exec_driver_sql("SELECT count(*) FROM gathered").scalar_one() == 0


def test_a_view_of_many_ranks_reads_no_more_rows_than_one_of_a_single_rank(store: Store) -> None:
    trained, steps = Trained(), list(range(120))
    trained.draw(steps)
    for caller, records in deliveries(trained, steps):
        store.writer.append(batch(caller, *records)).result()
    # 120 steps of 4 ranks are more records than a view holds, so the merged level above is read.
    bucket, found = store.reader.samples("run")
    assert bucket == 8
    assert sum(int(one.samples[0]) for one in found) == 120
    assert store.reader.samples("run", start=0, stop=70)[0] == 1
