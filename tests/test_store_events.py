"""Events of several ranks: each as it came, and the run's own, of those that tell the same once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.judging import BEFORE_ALL

from tests.batches import STARTED_AT, Dictation, batch, hello

pytestmark = pytest.mark.both_engines

NAMES = (("a", None), ("b", None), ("c", None))


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database, clock=lambda: STARTED_AT)
    yield opened
    opened.close()


def tell(store: Store, rank: int, culprits: Sequence[str | None], *, backward: Sequence[int] = (2, 1, 0)) -> None:
    """A rank whose every update skips, at which it names these."""
    say = Dictation()
    skips = [
        say.event(
            step, "skip", json.dumps({"parameter": name, "scale": 8.0} | ({} if name else {"reason": "elsewhere"}))
        )
        for step, name in enumerate(culprits)
    ]
    layout = say.layout(*NAMES, backward=backward)
    steps = say.steps(0, len(culprits), skipped=[1.0] * len(culprits), scale=[8.0] * len(culprits))
    store.writer.append(batch(hello(rank=rank, world_size=3), layout, *skips, steps)).result()


def test_a_skip_of_all_ranks_is_one_of_the_run_with_the_culprit_of_the_rank_that_knows_it(store: Store) -> None:
    tell(store, 0, [None, None])
    tell(store, 2, [None, "b"])
    tell(store, 1, ["c", None])
    found, _ = store.reader.events("run", merged=True)
    assert [(event.step, event.kind, event.data) for event in found] == [
        (0, "skip", {"parameter": "c", "scale": 8.0}),
        (1, "skip", {"parameter": "b", "scale": 8.0}),
    ]
    exact, _ = store.reader.events("run")
    assert [(event.step, event.rank, event.data["parameter"]) for event in exact] == [
        *((0, 0, None), (0, 2, None), (0, 1, "c")),
        *((1, 0, None), (1, 2, "b"), (1, 1, None)),
    ]


def test_of_several_culprits_the_first_in_backward_order_is_named(store: Store) -> None:
    tell(store, 0, ["a"])
    tell(store, 1, ["c"])
    tell(store, 2, ["b"])
    assert store.reader.events("run", merged=True)[0][0].data["parameter"] == "c"
    assert store.reader.steps_after("run", BEFORE_ALL, 10)[0][0].culprit == "c"


def test_without_an_order_the_lowest_rank_is_heard(store: Store) -> None:
    tell(store, 2, ["c"], backward=())
    tell(store, 1, ["b"], backward=())
    assert store.reader.events("run", merged=True)[0][0].data["parameter"] == "b"


def test_a_skip_that_rank_0_did_not_tell_is_of_the_run_all_the_same(store: Store) -> None:
    store.writer.append(batch(hello(rank=0), Dictation().steps(0, 2))).result()
    store.writer.append(batch(hello(rank=1), Dictation().event(1, "skip", '{"parameter": "x"}'))).result()
    assert [event.data["parameter"] for event in store.reader.events("run", merged=True)[0]] == ["x"]


def test_where_values_turned_non_finite_every_rank_tells_for_itself(store: Store) -> None:
    for rank in range(2):
        store.writer.append(batch(hello(rank=rank), Dictation().event(0, "nonfinite", '{"where": "loss"}'))).result()
    assert [event.rank for event in store.reader.events("run", merged=True)[0]] == [0, 1]


def test_a_skipped_update_is_judged_once_the_ranks_that_live_have_told_it(store: Store) -> None:
    store.writer.append(batch(hello(rank=1, world_size=3), Dictation().steps(0, 0 + 1))).result()
    tell(store, 0, [None, None])
    assert ([row.step for row in store.reader.steps_after("run", BEFORE_ALL, 10)[0]], 1) == ([0], 1)
    assert store.reader.steps_after("run", BEFORE_ALL, 10)[1] == 1
    say = Dictation(sequence=1)
    records = (say.event(1, "skip", '{"parameter": "b"}'), say.steps(1, 1))
    store.writer.append(batch(hello(rank=1, world_size=3), *records)).result()
    found, stored = store.reader.steps_after("run", BEFORE_ALL, 10)
    assert ([row.culprit for row in found], stored) == ([None, "b"], 2)


def test_a_rank_that_gives_no_sign_of_life_is_not_waited_for(store: Store) -> None:
    store.writer.append(batch(hello(rank=1), Dictation().steps(0, 1), at=STARTED_AT - 61)).result()
    tell(store, 0, [None, None])
    assert len(store.reader.steps_after("run", BEFORE_ALL, 10)[0]) == 2
