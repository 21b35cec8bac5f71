"""Retention: what is old goes, what is around events stays, and nothing that comes late is counted twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scalescope.wire import Record
from scalescope_server.judge_pass import judge_once
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.pruning import Piece, Removed
from scalescope_server.store.records import RunId

from tests.batches import Dictation, batch, hello, histograms
from tests.exported import picked, rows

pytestmark = pytest.mark.both_engines

RUN = RunId("run")
# Dictation tells update n at n seconds; the server takes what it stores as come at the time of the batch.
LATE = 5_000.0
LENGTH = 1024


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    store = open_store(database)
    yield store
    store.close()


def told(says: Dictation) -> list[Record]:
    records: list[Record] = [says.layout(("a", "fp16"), ("b", "fp16"))]
    for step in range(0, LENGTH, 16):
        records.append(says.sample(step, histograms([1, 2], [3])))
        records.append(says.tally(step, update_squares=[1.0, 1.0], weight_squares=[4.0, 4.0]))
    values = [float(step) for step in range(LENGTH)]
    return [*records, says.steps(0, LENGTH, loss=values, mine=values)]


def fill(store: Store, *ranks: int, skips: tuple[int, ...] = (512,), at: float = LATE) -> None:
    for rank in ranks or (0,):
        says = Dictation()
        events = [says.event(step, data='{"parameter": "a"}') for step in skips]
        caller = hello(rank=rank, world_size=max(len(ranks), 1))
        store.writer.append(batch(caller, *told(says), *events, at=at)).result()
    judge(store)


def judge(store: Store) -> None:
    judge_once(store, RUN)


def all_pieces(piece_at: Callable[[int], Piece]) -> Removed:
    removed, following = Removed(), 0
    while True:
        piece = piece_at(following)
        removed = removed.plus(piece.removed)
        if piece.following is None:
            return removed
        following = piece.following


def prune(store: Store, before: float = 1e9) -> Removed:
    return all_pieces(lambda start: store.writer.prune(RUN, start, before).result())


def steps_of(store: Store) -> list[int]:
    return [step for (step,) in picked(rows(store.reader, "updates"), "step")]


AROUND = [step for step in range(LENGTH) if 448 <= step < 584]


def test_what_is_old_goes_but_for_what_is_around_an_event(store: Store) -> None:
    fill(store)
    removed = prune(store)
    assert steps_of(store) == AROUND
    assert (removed.updates, removed.samples, removed.tallies) == (LENGTH - len(AROUND), 55, 55)
    assert {step for (step,) in picked(rows(store.reader, "samples"), "step")} == set(range(448, 584, 16))
    assert [event.step for event in store.reader.events(RUN)[0]] == [512]


def test_roll_ups_stay_as_they_were(store: Store) -> None:
    def rolled() -> list[object]:
        bucket, series = store.reader.series(RUN, ["loss", "mine"], points=128)
        samples = store.reader.samples(RUN, points=16)[1]
        return [bucket, *(series[name].sum.tolist() for name in series), [b.samples.tolist() for b in samples]]

    fill(store)
    before = rolled()
    prune(store)
    assert rolled() == before


def test_a_view_of_what_is_gone_says_so_by_its_buckets_and_one_around_an_event_is_exact(store: Store) -> None:
    fill(store)
    prune(store)
    assert store.reader.series(RUN, ["loss"], start=0, stop=100)[0] == 8
    assert store.reader.series(RUN, ["loss"], start=0, stop=100)[1]["loss"].n.sum() == 104
    assert store.reader.series(RUN, ["loss"], start=450, stop=580)[0] == 1
    assert store.reader.samples(RUN, start=0, stop=100)[0] > 1
    assert store.reader.samples(RUN, start=450, stop=580)[0] == 1
    assert store.reader.tallies(RUN, "parameter", ["update_squares"], [0], start=0, stop=100)[0] > 1


def test_what_is_young_stays(store: Store) -> None:
    fill(store, at=float(LENGTH))
    prune(store, before=600.0)
    # A piece goes when all of it is old.
    assert set(range(600, LENGTH)) < set(steps_of(store))
    assert 0 not in steps_of(store)


@pytest.mark.parametrize(("came_at", "before"), [(10.0, 11.0), (LATE, 2000.0)], ids=["ahead", "behind"])
def test_a_trainers_clock_that_is_off_makes_nothing_old(store: Store, came_at: float, before: float) -> None:
    """Old is what is so by both clocks: the trainer's, and that of the server to which it came."""
    fill(store, skips=(), at=came_at)
    assert prune(store, before) == Removed()
    prune(store, before=LATE + 1)
    assert steps_of(store) == []


def test_of_a_trainer_whose_clock_is_behind_goes_what_came_long_ago(store: Store) -> None:
    fill(store, skips=(), at=LATE)
    # The newest update is of 1023 seconds by its trainer's clock and came at 5000.
    prune(store, before=LATE - 400.0)
    assert set(range(LENGTH - 400, LENGTH)) < set(steps_of(store))
    assert 0 not in steps_of(store)


def test_a_clock_that_is_ahead_of_the_databases_makes_nothing_old(store: Store) -> None:
    before = store.reader.before(time.time() + 1e9, 100.0)
    assert before == pytest.approx(time.time() - 100.0, abs=60.0)
    assert store.reader.before(5000.0, 100.0) == 4900.0


def test_pruning_again_finds_nothing_and_may_begin_anywhere(store: Store) -> None:
    fill(store)
    store.writer.prune(RUN, 512, 1e9).result()
    prune(store)
    assert prune(store) == Removed()
    assert steps_of(store) == AROUND


def test_counting_says_what_pruning_removes_and_removes_nothing(store: Store) -> None:
    fill(store, 0, 1)
    counted = all_pieces(lambda start: store.reader.count_prunable(RUN, start, 1e9))
    assert len(steps_of(store)) == 2 * LENGTH
    assert prune(store) == counted
    assert counted.updates == 2 * (LENGTH - len(AROUND))
    assert counted.size > 0


def test_what_is_not_judged_yet_is_not_pruned(store: Store) -> None:
    says = Dictation()
    store.writer.append(batch(hello(world_size=1), says.steps(0, LENGTH), at=1.0)).result()
    assert prune(store) == Removed()
    judge(store)
    assert prune(store).updates == LENGTH


def test_a_value_that_comes_for_an_update_that_is_gone_is_not_counted_again(store: Store) -> None:
    says = Dictation()
    store.writer.append(batch(hello(world_size=1), says.steps(0, 64, loss=[1.0] * 64), at=1.0)).result()
    store.writer.append(batch(hello(world_size=1), says.steps(80, 48, loss=[1.0] * 48), at=1.0)).result()
    judge(store)
    prune(store)
    assert steps_of(store) == []
    # 16 of them had never come, the others had.
    late = says.steps(32, 64, loss=[3.0] * 64, mine=[1.0] * 64)
    receipt = store.writer.append(batch(hello(world_size=1), late, at=2.0)).result()
    assert (receipt.stored, store.reader.latest(RUN).attempted) == (1, 128)
    assert steps_of(store) == list(range(64, 80))
    found = store.reader.series(RUN, ["attempted", "loss", "mine"])[1]
    assert [found[name].sum.sum() for name in ("attempted", "loss", "mine")] == [128.0, 160.0, 16.0]


def test_a_rank_that_comes_late_does_not_stand_for_all_of_them(store: Store) -> None:
    fill(store, 0, 1)
    before = store.reader.series(RUN, ["grad_norm"], points=128)[1]["grad_norm"]
    prune(store)
    says = Dictation(sequence=1000)
    store.writer.append(batch(hello(rank=1), says.sample(16, histograms([9], [9])), at=LATE)).result()
    after = store.reader.series(RUN, ["grad_norm"], points=128)[1]["grad_norm"]
    assert np.array_equal(before.max, after.max)
    assert np.array_equal(before.n, after.n)


def test_what_was_judged_stays_judged_where_it_cannot_be_read_again(store: Store) -> None:
    says = Dictation()
    skipped = [float(step % 4 == 1) for step in range(LENGTH)]
    scale = [65536.0 / 2 ** (step % 4 > 1) for step in range(LENGTH)]
    store.writer.append(
        batch(hello(world_size=1), says.steps(0, LENGTH, skipped=skipped, scale=scale), at=1.0)
    ).result()
    store.writer.append(batch(hello(segment="second", world_size=1), Dictation().steps(0, 8), at=1.0)).result()
    judge(store)
    before = store.reader.findings(RUN)
    assert before
    prune(store)
    # What comes late of the first segment belongs before what is judged of the second.
    store.writer.append(batch(hello(world_size=1), says.steps(LENGTH, 8), at=1.0)).result()
    judge(store)
    assert store.reader.findings(RUN) == before
    assert store.reader.unjudged() == []


def test_samples_of_updates_that_were_never_told_are_not_missed_in_silence(store: Store) -> None:
    says = Dictation()
    records: list[Record] = [says.layout(("a", "fp16"))]
    records += [says.sample(step, histograms([1])) for step in (16, 32)]
    records += [says.steps(0, 8), says.steps(512, 8)]
    store.writer.append(batch(hello(world_size=1), *records, at=1.0)).result()
    judge(store)
    prune(store)
    bucket, found = store.reader.samples(RUN, start=8, stop=64)
    assert (bucket > 1, sum(int(each.samples.sum()) for each in found)) == (True, 2)
    # These updates may still come, and count then.
    store.writer.append(batch(hello(world_size=1), says.steps(16, 8), at=1.0)).result()
    assert store.reader.latest(RUN).attempted == 24


def test_a_gap_of_a_billion_steps_is_stepped_over(store: Store) -> None:
    says = Dictation()
    records = (says.steps(0, 8), says.steps(2**30, 16))
    store.writer.append(batch(hello(world_size=1), *records, at=1.0)).result()
    judge(store)
    assert prune(store, before=2e9).updates == 24


def test_runs_that_are_young_are_not_looked_at(store: Store) -> None:
    fill(store)
    assert [(found.run, found.looked_at, found.length) for found in store.reader.prunable(1e9)] == [(RUN, 0, LENGTH)]
    assert store.reader.prunable(0.0) == []
    prune(store)
    assert store.reader.prunable(1e9)[0].looked_at == LENGTH
