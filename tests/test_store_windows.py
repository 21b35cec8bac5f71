"""Facts of windows in the store: alike neighbours are one row, whatever the batches, and nothing told is lost."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scalescope_server.store.decoding import Stretch
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.errors import BadRecord
from scalescope_server.store.windows import joined
from sqlalchemy import event

from tests.batches import Dictation, batch, hello

pytestmark = pytest.mark.both_engines

FACTS: tuple[dict[str, object], ...] = ({}, {"clip": {"when": "unscaled"}}, {"micro_batches": 4})


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database)
    yield opened
    opened.close()


def told(
    store: Store, *, start: int | None = None, stop: int | None = None, rank: int = 0
) -> list[tuple[int, int, object]]:
    rows, _, _ = store.reader.facts("run", start=start, stop=stop, rank=rank)
    return [(row.first_step, row.last_step, row.facts) for row in rows]


def alike(facts: list[int]) -> list[tuple[int, int, object]]:
    """The stretches of equal facts, by the definition; updates without facts make none."""
    found: list[tuple[int, int, object]] = []
    first = 0
    for which, group in groupby(facts):
        count = len(list(group))
        if FACTS[which]:
            found.append((first, first + count - 1, FACTS[which]))
        first += count
    return found


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from(range(len(FACTS))), min_size=1, max_size=40),
    st.sets(st.integers(1, 39), max_size=5),
    st.randoms(use_true_random=False),
)
def test_alike_windows_are_one_row_however_they_are_split_and_in_whatever_order_they_come(
    facts: list[int], cuts: set[int], random: Random
) -> None:
    edges = sorted({0, len(facts), *(cut for cut in cuts if cut < len(facts))})
    say = Dictation()
    records = [
        say.steps(first, end - first, *((1, FACTS[which]) for which in facts[first:end]))
        for first, end in pairwise(edges)
    ]
    random.shuffle(records)
    together = random.randint(1, 3)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(str(Path(folder) / "windows.db"))
        for first in range(0, len(records), together):
            store.writer.append(batch(hello(), *records[first : first + together])).result()
        assert told(store) == alike(facts)
        store.close()


def test_records_that_go_on_one_after_the_other_are_entered_together(store: Store) -> None:
    say = Dictation()
    store.writer.append(batch(hello(), say.steps(0, 1, (1, FACTS[1])))).result()
    statements: list[str] = []

    def note(*arguments: object) -> None:
        statements.append(str(arguments[2]))

    event.listen(store._writing, "before_cursor_execute", note)
    store.writer.append(batch(hello(), *(say.steps(step, 1, (1, FACTS[1])) for step in range(1, 9)))).result()
    assert len([statement for statement in statements if "window" in statement]) == 3
    assert told(store) == [(0, 8, FACTS[1])]


def test_what_was_told_stays_and_what_comes_late_fills_the_gaps() -> None:
    stored = [Stretch(2, 4, "a"), Stretch(8, 8, "b")]
    assert joined(stored, [Stretch(0, 10, "b")]) == [
        Stretch(0, 1, "b"),
        Stretch(2, 4, "a"),
        Stretch(5, 10, "b"),
    ]
    assert joined(stored, [Stretch(5, 7, "a")]) == [Stretch(2, 7, "a"), Stretch(8, 8, "b")]
    assert joined(stored, [Stretch(3, 4, "c")]) == stored


def test_many_long_facts_that_new_ones_touch_are_not_held_at_once(store: Store) -> None:
    say = Dictation()
    long = [(1, {"which": step, "told": "x" * 15_000}) for step in range(400)]
    store.writer.append(batch(hello(), say.steps(0, 400, *long))).result()
    tracemalloc.start()
    store.writer.append(batch(hello(), say.steps(0, 401, (401, {"late": True})))).result()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 400 * 15_000 / 2
    assert [row[:2] for row in told(store)] == [(step, step) for step in range(401)]


def test_equal_facts_of_another_rank_or_segment_are_rows_of_their_own(store: Store) -> None:
    facts = {"micro_batches": 2}
    store.writer.append(batch(hello(), Dictation().steps(0, 3, (3, facts)))).result()
    store.writer.append(batch(hello(rank=1), Dictation().steps(0, 5, (5, facts)))).result()
    store.writer.append(batch(hello(segment="second"), Dictation().steps(0, 2, (2, facts)))).result()
    assert told(store) == [(0, 2, facts), (5, 6, facts)]
    assert told(store, rank=1) == [(0, 4, facts)]
    assert [row.segment for row in store.reader.facts("run")[0]] == ["first", "second"]


def test_a_range_gets_the_windows_that_meet_it_whole(store: Store) -> None:
    one, other = {"micro_batches": 1}, {"micro_batches": 2}
    store.writer.append(batch(hello(), Dictation().steps(0, 30, (10, one), (10, other), (10, one)))).result()
    assert told(store, start=12, stop=20) == [(10, 19, other)]
    assert told(store, start=5, stop=11) == [(0, 9, one), (10, 19, other)]
    assert told(store, start=29) == [(20, 29, one)]
    assert told(store, start=30) == []
    assert told(store, stop=0) == []


def test_a_window_of_an_older_segment_that_reaches_into_the_range_is_found(store: Store) -> None:
    one, other = {"micro_batches": 1}, {"micro_batches": 2}
    first = Dictation()
    store.writer.append(batch(hello(), first.steps(0, 4, (4, one)))).result()
    store.writer.append(batch(hello(segment="second"), Dictation().steps(0, 4, (2, other), (2, one)))).result()
    store.writer.append(batch(hello(), first.steps(4, 6, (6, one)))).result()
    assert told(store, start=7, stop=8) == [(0, 9, one), (6, 7, one)]


def test_windows_come_in_pages(store: Store) -> None:
    windows = [(1, {"micro_batches": step}) for step in range(1, 12)]
    store.writer.append(batch(hello(), Dictation().steps(0, 11, *windows))).result()
    steps: list[int] = []
    cursor = None
    while True:
        rows, _, cursor = store.reader.facts("run", cursor=cursor, limit=4, start=2)
        steps += [row.first_step for row in rows]
        if cursor is None:
            break
    assert steps == list(range(2, 11))


@pytest.mark.parametrize(
    ("window", "message"),
    [((4, {}), "expected windows of at most 3 updates"), ((1, [1]), "windows: expected a JSON object, got list")],
)
def test_windows_that_cannot_be_true_refuse_their_batch(store: Store, window: tuple[int, object], message: str) -> None:
    with pytest.raises(BadRecord, match=message):
        store.writer.append(batch(hello(), Dictation().steps(0, 3, window))).result()


def test_the_set_up_in_force_is_the_last_that_began_before_the_end(store: Store) -> None:
    say = Dictation()
    records = (say.setup(0, flags={"tf32": False}), say.steps(0, 20), say.setup(10, flags={"tf32": True}))
    store.writer.append(batch(hello(), *records)).result()
    assert store.reader.facts("run")[1] == {"flags": {"tf32": True}}
    assert store.reader.facts("run", stop=10)[1] == {"flags": {"tf32": False}}
    assert store.reader.facts("run", stop=0)[1] == {}
    assert store.reader.facts("run", rank=1)[1] == {}


@pytest.mark.parametrize(("most", "since", "first"), [(6, None, 0), (5, 3, 2), (4, 4, 4), (1, 7, 7)])
def test_the_last_facts_are_all_or_where_they_are_too_many_those_of_the_last_updates(
    store: Store, most: int, since: int | None, first: int
) -> None:
    say = Dictation()
    lengths = (2, 2, 1, 1, 1, 1)
    windows = [(count, {"micro_batches": which}) for which, count in enumerate(lengths)]
    store.writer.append(batch(hello(), say.steps(0, 8, *windows), say.setup(5, autocast={"cuda": "fp16"}))).result()
    found, rows, setup = store.reader.last_facts("run", most)
    assert (found, rows[0].first_step, rows[-1].last_step) == (since, first, 7)
    assert rows == store.reader.facts("run", start=since)[0]
    assert setup == {"autocast": {"cuda": "fp16"}}
