"""Batches in the tables: once each, every rank and segment in its place, and nothing that cannot be true."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from scalescope.wire import Heartbeat
from scalescope_server.store.delivery import Receipt
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.errors import BadRecord
from scalescope_server.store.records import RunId

from tests.batches import STARTED_AT, Dictation, batch, hello, histograms

pytestmark = pytest.mark.both_engines


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database, clock=lambda: STARTED_AT)
    yield opened
    opened.close()


def steps_of(store: Store, run: str = "run", rank: int = 0) -> list[int]:
    return list(store.reader.series(run, ["attempted"], rank=rank)[1]["attempted"].step.tolist())


def test_the_receipt_tells_what_became_durable(store: Store) -> None:
    say = Dictation()
    records = (say.layout(("w", None)), say.sample(0, histograms([0])), say.event(1), say.steps(0, 3), say.bye())
    receipt = store.writer.append(batch(hello(), *records)).result()
    assert receipt == Receipt(
        run=RunId("run"),
        rank=0,
        durable=4,
        stored=5,
        duplicates=0,
        steps=(0, 3),
        samples=1,
        events=1,
        ended=True,
    )


def test_a_batch_that_comes_again_changes_nothing(store: Store) -> None:
    say = Dictation()
    given = batch(hello(), say.layout(("w", None)), say.sample(1, histograms([0])), say.steps(0, 3), say.event(1))
    store.writer.append(given).result()
    again = store.writer.append(given).result()
    assert (again.durable, again.stored, again.duplicates, again.steps) == (3, 0, 4, (3, 3))
    detail = store.reader.run("run")
    assert (detail.summary.attempted, detail.ledger[0].received, detail.ledger[0].duplicate) == (3, 4, 4)
    assert len(store.reader.events("run")[0]) == 1
    assert len(store.reader.samples("run")[1]) == 1


def test_a_batch_that_overlaps_the_last_stores_only_what_is_new(store: Store) -> None:
    say = Dictation()
    one, two, three = say.steps(0, 2), say.steps(2, 2), say.steps(4, 2)
    store.writer.append(batch(hello(), one, two)).result()
    receipt = store.writer.append(batch(hello(), two, three)).result()
    assert (receipt.stored, receipt.duplicates, receipt.steps) == (1, 1, (4, 6))
    assert steps_of(store) == list(range(6))


def test_records_that_come_out_of_order_fill_the_gap(store: Store) -> None:
    say = Dictation()
    one, two, three = say.steps(0, 2), say.steps(2, 2), say.steps(4, 2)
    store.writer.append(batch(hello(), one, three)).result()
    assert store.reader.run("run").ledger[0].lost == 1
    store.writer.append(batch(hello(), two)).result()
    assert store.reader.run("run").ledger[0].lost == 0
    assert steps_of(store) == list(range(6))
    assert store.writer.admit(hello(), 1.0).result().ledger.ranges == ((0, 2),)


def test_the_ledger_outlives_the_process(database: str) -> None:
    say = Dictation()
    given = batch(hello(), say.steps(0, 3))
    for duplicates in (0, 1):
        opened = open_store(database)
        assert opened.writer.append(given).result().duplicates == duplicates
        opened.close()


def test_what_the_trainer_dropped_is_not_lost(store: Store) -> None:
    say = Dictation()
    first = say.steps(0, 1)
    say.sequence += 3
    told = say.event(0, "dropped", '{"messages": 2, "sample": 2}')
    store.writer.append(batch(hello(), first, told)).result()
    row = store.reader.run("run").ledger[0]
    assert (row.received, row.dropped, row.lost) == (2, 2, 1)


def test_two_ranks_keep_their_own_rows_and_rank_0_counts(store: Store) -> None:
    for rank in (0, 1):
        say = Dictation()
        steps = say.steps(0, 4, skipped={1: 1.0} if rank == 0 else {}, loss=[float(rank)] * 4)
        receipt = store.writer.append(batch(hello(rank=rank), steps)).result()
        assert receipt.steps == ((0, 4) if rank == 0 else (0, 0))
    summary = store.reader.latest("run")
    assert (summary.attempted, summary.applied, summary.skipped) == (4, 3, 1)
    assert store.reader.run("run").ranks == [0, 1]
    assert store.reader.series("run", ["loss"], rank=1)[1]["loss"].last.tolist() == [1.0] * 4


def test_a_resumed_segment_goes_on_where_the_run_stopped(store: Store) -> None:
    store.writer.append(batch(hello(), Dictation().steps(0, 5), Dictation(1).event(4))).result()
    say = Dictation()
    again = hello(segment="second")
    store.writer.append(batch(again, say.steps(0, 3), say.event(1))).result()
    assert steps_of(store) == list(range(8))
    assert [event.step for event in store.reader.events("run")[0]] == [4, 6]
    assert [segment.first_step for segment in store.reader.run("run").segments] == [0, 5]
    late_rank = hello(segment="second", rank=1)
    store.writer.append(batch(late_rank, Dictation().steps(0, 2))).result()
    assert steps_of(store, rank=1) == [5, 6]


def test_a_late_delivery_of_an_older_segment_overwrites_nothing(store: Store) -> None:
    say = Dictation()
    early, late = say.steps(0, 2, loss=[1.0, 1.0]), say.steps(2, 1, loss=[2.0])
    store.writer.append(batch(hello(), early)).result()
    store.writer.append(batch(hello(segment="second"), Dictation().steps(0, 1, loss=[3.0]))).result()
    store.writer.append(batch(hello(), late)).result()
    loss = store.reader.series("run", ["loss"])[1]["loss"]
    assert (loss.step.tolist(), loss.last.tolist()) == ([0, 1, 2, 2], [1.0, 1.0, 2.0, 3.0])
    assert store.reader.latest("run").attempted == 4


def test_a_late_value_fills_its_gap_and_never_replaces_another(store: Store) -> None:
    say = Dictation()
    store.writer.append(batch(hello(), say.steps(0, 4, loss={1: 5.0}, mine={0: 1.0}, scale=[8.0] * 4))).result()
    late = say.steps(0, 5, loss=[7.0, 7.0, math.nan, math.inf, 7.0], mine=[2.0] * 5, skipped=[1.0] * 5)
    receipt = store.writer.append(batch(hello(), late)).result()
    assert receipt.steps == (4, 5)
    found = store.reader.series("run", ["loss", "mine", "skipped", "scale"])[1]
    assert found["loss"].last[[0, 1, 4]].tolist() == [7.0, 5.0, 7.0]
    assert (found["loss"].nan.tolist(), found["loss"].inf.tolist()) == ([0, 0, 1, 0, 0], [0, 0, 0, 1, 0])
    assert found["mine"].last.tolist() == [1.0, 2.0, 2.0, 2.0, 2.0]
    assert found["skipped"].last.tolist() == [0, 0, 0, 0, 1]
    assert found["scale"].step.tolist() == [0, 1, 2, 3]
    assert (store.reader.latest("run").attempted, store.reader.latest("run").skipped) == (5, 1)


def test_the_scale_in_force_may_be_told_later_than_its_update(store: Store) -> None:
    say = Dictation()
    store.writer.append(batch(hello(), say.steps(0, 3))).result()
    assert store.reader.latest("run").scale is None
    store.writer.append(batch(hello(), say.steps(0, 3, scale=[1.0, 2.0, 4.0]))).result()
    assert store.reader.latest("run").scale == 4.0
    # What is told of an older update changes nothing.
    store.writer.append(batch(hello(), say.steps(4, 1, scale=[8.0]), say.steps(3, 1, scale=[16.0]))).result()
    assert store.reader.latest("run").scale == 8.0
    store.writer.append(batch(hello(), say.steps(5, 1))).result()
    assert store.reader.latest("run").scale is None


@pytest.mark.parametrize("scale", [math.inf, math.nan, 0.0])
def test_a_scale_that_is_none_is_told_as_it_came(store: Store, scale: float) -> None:
    store.writer.append(batch(hello(), Dictation().steps(0, 2, scale=[2.0, scale]))).result()
    assert np.array_equal(store.reader.latest("run").scale or 0.0, scale, equal_nan=True)


def test_an_event_far_ahead_leaves_the_run_as_long_as_its_updates(store: Store) -> None:
    say = Dictation()
    store.writer.append(batch(hello(), say.steps(0, 100, scale=[8.0] * 100), say.event(2**31 - 2))).result()
    bucket, found = store.reader.series("run", ["scale"])
    assert (bucket, len(found["scale"].step)) == (1, 100)
    assert [event.step for event in store.reader.events("run")[0]] == [2**31 - 2]


def test_after_bye_only_what_was_numbered_before_it_may_come(store: Store) -> None:
    say = Dictation()
    early, missing, end, after = say.steps(0, 2), say.steps(2, 2), say.bye(), say.steps(4, 2)
    with pytest.raises(BadRecord, match="steps 3: expected nothing after Bye"):
        store.writer.append(batch(hello(world_size=1), early, end, after)).result()
    store.writer.append(batch(hello(), early, end)).result()
    store.writer.append(batch(hello(), missing)).result()
    with pytest.raises(BadRecord, match="steps 3: expected nothing after Bye"):
        store.writer.append(batch(hello(), after)).result()
    assert store.writer.append(batch(hello(), end)).result().duplicates == 1
    assert steps_of(store) == [0, 1, 2, 3]
    store.writer.append(batch(hello(segment="second"), Dictation().steps(0, 1))).result()
    assert steps_of(store) == [0, 1, 2, 3, 4]


def test_a_heartbeat_alone_makes_the_run_known(store: Store) -> None:
    beat = Heartbeat(at=1.0, step=None, progress_at=None, pending=0, dropped=3)
    store.writer.heartbeat(hello(), beat, STARTED_AT + 5).result()
    detail = store.reader.run("run")
    assert (detail.summary.state, detail.summary.attempted, detail.summary.last_seen_at) == ("running", 0, 1005.0)
    assert detail.ledger[0].dropped == 3


def test_the_end_of_the_last_rank_ends_the_run_and_a_resume_begins_it_anew(store: Store) -> None:
    for rank in (0, 1):
        store.writer.append(batch(hello(rank=rank), Dictation().steps(0, 1))).result()
    states = []
    for rank in (0, 1):
        store.writer.append(batch(hello(rank=rank), Dictation(1).bye())).result()
        states.append(store.reader.latest("run").state)
    store.writer.append(batch(hello(segment="second"), Dictation().steps(0, 1))).result()
    assert [*states, store.reader.latest("run").state] == ["running", "finished", "running"]


def test_one_crashed_rank_crashes_the_run_and_is_its_cause(store: Store) -> None:
    for rank, detail in ((1, "out of memory"), (0, "a peer is gone")):
        store.writer.append(batch(hello(rank=rank), Dictation().bye("crashed", detail))).result()
    segment = store.reader.run("run").segments[0]
    assert (store.reader.latest("run").state, segment.end, segment.detail) == ("crashed", "crashed", "out of memory")


def test_a_sample_outside_the_layout_is_refused_with_its_batch(store: Store) -> None:
    say = Dictation()
    given = batch(hello(), say.steps(0, 1), say.layout(("w", None)), say.sample(0, histograms([0], [1])))
    with pytest.raises(BadRecord, match=r"sample 2: expected the index of one of the 1 parameters .* got 1"):
        store.writer.append(given).result()
    assert store.reader.runs()[0] == []


def test_deleting_a_run_leaves_nothing_of_it(store: Store) -> None:
    for run in ("run", "other"):
        say = Dictation()
        records = (say.layout(("w", None)), say.sample(0, histograms([0])), say.event(1), say.steps(0, 70, mine=[1.0]))
        store.writer.append(batch(hello(run), *records)).result()
    store.writer.delete_run(RunId("run")).result()
    assert [summary.id for summary in store.reader.runs()[0]] == ["other"]
    assert np.array_equal(store.reader.series("other", ["mine"])[1]["mine"].last, [1.0])
