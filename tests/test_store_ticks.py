"""Updates as rules are evaluated over them: in order past a position, whole, and no more of them than was asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.judging import BEFORE_ALL, Position
from scalescope_server.store.records import RunId
from scalescope_server.store.ticks import Column, Updates, Wanted

from tests.batches import Dictation, batch, hello, histograms

RUN = RunId("run")
ALL = Position(9, 0)

pytestmark = pytest.mark.both_engines


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with closing(open_store(database, clock=lambda: 1000.0)) as opened:
        yield opened


def read(
    store: Store, *series: str, ranks: str = "", after: Position = BEFORE_ALL, until: Position = ALL, limit: int = 100
) -> list[Updates]:
    wanted = Wanted(frozenset(series), frozenset(ranks.split()))
    return store.reader.updates_after(RUN, wanted, after, until, limit)[0]


def listed(column: Column) -> list[float | None]:
    """Its values, None where nothing was told."""
    return [value if told else None for value, told in zip(*(each.tolist() for each in column), strict=True)]


def test_columns_and_scalars_stand_where_they_were_told_and_keep_what_is_not_finite(store: Store) -> None:
    say, caller = Dictation(), hello(world_size=1)
    columns = {"scale": [2.0, math.inf, 4.0, 4.0], "skipped": [0.0, 1.0, 0.0, 0.0]}
    told = say.steps(0, 4, **columns, loss={0: math.nan, 3: 1.5}, mine={1: -math.inf, 2: 7.0})
    store.writer.append(batch(caller, told, say.event(2, "dropped", '{"messages": 3}'))).result()
    (found,) = read(store, "scale", "skipped", "applied", "attempted", "loss", "mine", "never", "dropped")
    assert (found.segment, found.step.tolist(), found.at.tolist()) == (0, [0, 1, 2, 3], [0.0, 1.0, 2.0, 3.0])
    assert listed(found.values["scale"]) == [2.0, math.inf, 4.0, 4.0]
    assert listed(found.values["applied"]) == [1.0, 0.0, 1.0, 1.0]
    assert listed(found.values["attempted"]) == [1.0] * 4
    np.testing.assert_array_equal(listed(found.values["loss"])[0], math.nan)
    assert listed(found.values["loss"])[1:] == [None, None, 1.5]
    assert listed(found.values["mine"]) == [None, -math.inf, 7.0, None]
    assert listed(found.values["never"]) == [None] * 4
    assert listed(found.values["dropped"]) == [0.0, 0.0, 3.0, 0.0]


def test_segments_follow_one_another_in_bounded_pieces(store: Store) -> None:
    for segment, count in (("first", 5), ("second", 4)):
        caller = hello(segment=segment, world_size=1)
        store.writer.append(batch(caller, Dictation().steps(0, count, scale=[1.0] * count))).result()
    seen, position = [], BEFORE_ALL
    while found := read(store, "scale", after=position, limit=3):
        seen += [(part.segment, step) for part in found for step in part.step.tolist()]
        position = Position(*seen[-1])
    assert seen == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 5), (1, 6), (1, 7), (1, 8)]
    upto = read(store, after=Position(0, 2), until=Position(1, 6))
    assert [(part.segment, part.step.tolist()) for part in upto] == [(0, [3, 4]), (1, [5, 6])]


def test_ranks_stand_beside_one_another_and_those_that_live_are_waited_for(store: Store) -> None:
    scales = {0: [1.0, 2.0, 2.0, 2.0], 1: [1.0, 4.0]}
    for rank, values in scales.items():
        told = Dictation().steps(0, len(values), scale=values, skipped=[0.0] * len(values))
        store.writer.append(batch(hello(rank=rank), told, at=1000.0)).result()
    (found,) = read(store, "scale", ranks="scale applied")
    assert found.step.tolist() == [0, 1]
    assert {rank: listed(column) for rank, column in found.ranks["scale"].items()} == {0: [1.0, 2.0], 1: [1.0, 4.0]}
    assert listed(found.ranks["applied"][1]) == [1.0, 1.0]
    # Who looks at rank 0 alone waits for nobody.
    assert read(store, "scale")[0].step.tolist() == [0, 1, 2, 3]
    store.writer.append(batch(hello(rank=1), Dictation(sequence=1).bye("crashed"), at=1000.0)).result()
    (found,) = read(store, "scale", ranks="scale")
    assert listed(found.ranks["scale"][1]) == [1.0, 4.0, None, None]


def test_of_what_all_ranks_measured_the_merge_is_read_and_waited_for(store: Store) -> None:
    for rank in range(2):
        say = Dictation()
        sample, steps = say.sample(1, histograms([rank])), say.steps(0, 2, scale=[65536.0] * 2)
        store.writer.append(batch(hello(rank=rank), say.layout(("w", "fp16")), sample, steps, at=1000.0)).result()
        found = read(store, "amax")
        # Rank 1 has a copy of what rank 0 reports.
        assert [listed(part.values["amax"]) for part in found] == [[None, 2.0**-16]]


def test_a_window_reaches_back_by_updates_or_by_time_whichever_is_farther(store: Store) -> None:
    """The second start has a clock that was set back: that does not make a window of updates any longer."""
    for segment in ("first", "second"):
        caller = hello(segment=segment, world_size=1)
        store.writer.append(batch(caller, Dictation().steps(0, 10, scale=[1.0] * 10))).result()
    at = Position(1, 14)
    assert store.reader.look_back(RUN, at, 1, 0.0) == (1, 13)
    assert store.reader.look_back(RUN, at, 5, 0.0) == (0, 9)
    assert store.reader.look_back(RUN, at, 7, 0.0) == (0, 7)
    assert store.reader.look_back(RUN, at, 1, 2.5) == (1, 11)
    assert store.reader.look_back(RUN, at, 4, 2.5) == (1, 10)
    assert store.reader.look_back(RUN, at, 0, 2.5, 2) == (1, 12)
    assert store.reader.look_back(RUN, at, 3, 2.5, 2) == (1, 11)
    assert store.reader.look_back(RUN, at, 100, 0.0) == BEFORE_ALL
    assert store.reader.newest_update(RUN) == (1, 19)


def test_what_was_measured_is_known_by_its_kind(store: Store) -> None:
    say, caller = Dictation(), hello(world_size=1)
    told = batch(
        caller,
        say.layout(("w", "fp16"), modules=["m"]),
        say.sample(2, histograms([0])),
        say.tally(2, update_squares=[1.0], weight_squares=[4.0]),
        say.tally(4, subject="module", forward_amax=[1.0]),
        say.steps(0, 6, scale=[1.0] * 6),
    )
    store.writer.append(told).result()
    assert store.reader.measured_steps(RUN, 0, 5) == {"grad": [2], "module": [4], "parameter": [2]}
    assert store.reader.measured_steps(RUN, 3, 5) == {"module": [4]}
