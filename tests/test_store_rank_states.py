"""How each rank fares: alive, stalled, silent, ended, or never heard of."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scalescope.wire import Heartbeat
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.records import Opinion, RankRow

from tests.batches import STARTED_AT, Dictation, batch, hello

pytestmark = pytest.mark.both_engines

NOW = STARTED_AT + 1000.0


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database, clock=lambda: NOW)
    yield opened
    opened.close()


def tell(store: Store, rank: int, count: int, *, at: float = NOW, ending: str | None = None, size: int = 4) -> None:
    say = Dictation()
    records = [say.steps(0, count, scale=[8.0] * count, skipped={0: 1.0})]
    ends = [say.bye("crashed" if ending == "crashed" else "finished")] if ending else []
    store.writer.append(batch(hello(rank=rank, world_size=size), *records, *ends, at=at)).result()


def beat(store: Store, rank: int, step: int, *, quiet_s: float, ahead_s: float = 0.0) -> None:
    """A heartbeat that comes now, of a trainer whose clock is ahead."""
    message = Heartbeat(
        at=NOW + ahead_s,
        step=step,
        progress_at=NOW + ahead_s - quiet_s,
        pending=2,
        dropped=1,
        sent_bytes=5000,
        thread_cpu_s=0.25,
    )
    store.writer.heartbeat(hello(rank=rank, world_size=4), message, NOW).result()


def ranks(store: Store) -> list[RankRow]:
    return store.reader.run("run").rank_states


def test_each_rank_has_a_state_of_its_own(store: Store) -> None:
    tell(store, 0, 10)
    tell(store, 1, 10, ending="crashed")
    tell(store, 2, 4, at=NOW - 61)
    assert [(rank.rank, rank.state, rank.last_step, rank.lag) for rank in ranks(store)] == [
        (0, "running", 9, 0),
        (1, "crashed", 9, 0),
        (2, "silent", 3, 6),
        (3, "absent", None, None),
    ]
    assert store.reader.latest("run").state == "crashed"


def test_a_run_goes_on_while_one_of_its_ranks_is_silent_and_ends_with_the_last(store: Store) -> None:
    tell(store, 1, 4, at=NOW - 61, size=2)
    tell(store, 0, 10, size=2)
    assert store.reader.latest("run").state == "running"
    store.writer.append(batch(hello(rank=0), Dictation(sequence=1).bye(), at=NOW)).result()
    assert store.reader.latest("run").state == "running"
    store.writer.append(batch(hello(rank=1), Dictation(sequence=1).bye(), at=NOW)).result()
    assert store.reader.latest("run").state == "finished"


@pytest.mark.parametrize("ahead_s", [-500.0, 0.0, 3600.0])
def test_a_rank_that_lives_and_closes_no_update_is_stalled_whatever_its_clock_says(
    store: Store, ahead_s: float
) -> None:
    tell(store, 0, 10)
    tell(store, 1, 10)
    beat(store, 0, 9, quiet_s=90.0, ahead_s=ahead_s)
    beat(store, 1, 9, quiet_s=5.0, ahead_s=ahead_s)
    assert [rank.state for rank in ranks(store)[:2]] == ["stalled", "running"]
    assert ranks(store)[0].progress_at == NOW - 90.0


def test_a_training_of_slow_updates_is_not_stalled_between_two_of_them(store: Store) -> None:
    say = Dictation()
    store.writer.append(batch(hello(world_size=4), say.steps(0, 10, step_ms=[30_000.0] * 10), at=NOW)).result()
    beat(store, 0, 9, quiet_s=90.0)
    assert ranks(store)[0].state == "running"
    beat(store, 0, 9, quiet_s=151.0)
    assert ranks(store)[0].state == "stalled"


def test_a_rank_tells_what_it_attempted_delivered_and_cost(store: Store) -> None:
    tell(store, 1, 10)
    beat(store, 1, 11, quiet_s=0.0)
    found = ranks(store)[1]
    assert (found.attempted, found.skipped, found.scale) == (10, 1, 8.0)
    assert (found.last_step, found.received, found.dropped, found.lost, found.pending) == (11, 1, 1, 0, 2)
    assert (found.sent_bytes, found.bytes_per_update, found.thread_cpu_s) == (5000, 5000 / 12, 0.25)


def test_ranks_that_disagree_are_told_with_what_each_said(store: Store) -> None:
    for rank, scale in enumerate([8.0, 8.0, 4.0]):
        steps = Dictation().steps(0, 6, scale=[8.0] * 5 + [scale], skipped={0: float(rank == 1)})
        store.writer.append(batch(hello(rank=rank, world_size=3), steps)).result()
    skipped, scale_told = store.reader.run("run").disagreements
    assert (skipped.name, skipped.step) == ("skipped", 0)
    assert skipped.opinions == [Opinion(0.0, [0, 2]), Opinion(1.0, [1])]
    assert (scale_told.step, scale_told.opinions) == (5, [Opinion(8.0, [0, 1]), Opinion(4.0, [2])])


def test_a_resumed_run_shows_the_ranks_of_its_newest_start(store: Store) -> None:
    tell(store, 0, 10, ending="crashed")
    tell(store, 1, 10)
    store.writer.append(batch(hello(segment="second", world_size=1), Dictation().steps(0, 5), at=NOW)).result()
    assert [(r.rank, r.segment, r.state, r.last_step) for r in ranks(store)] == [(0, "second", "running", 14)]


def test_a_rank_that_could_not_agree_with_the_others_does_not_hide_them(store: Store) -> None:
    tell(store, 0, 10, size=2)
    store.writer.append(batch(hello(segment="apart", rank=1), Dictation().steps(0, 5), at=NOW)).result()
    assert [(r.rank, r.segment, r.state) for r in ranks(store)] == [(0, "first", "running"), (1, "first", "absent")]


def test_of_very_many_ranks_those_that_never_called_are_not_all_listed(store: Store) -> None:
    store.writer.append(batch(hello(rank=0, world_size=2**31 - 1), Dictation().steps(0, 1), at=NOW)).result()
    assert len(ranks(store)) <= 65
