"""Events and updates as they were stored."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from scalescope.wire import Part
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.judging import BEFORE_ALL, Position, Setting, StepRow
from scalescope_server.store.records import EventRow

from tests.batches import Dictation, batch, hello, histograms

pytestmark = pytest.mark.both_engines


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database)
    yield opened
    opened.close()


def all_events(store: Store, limit: int, **chosen: object) -> tuple[int, list[EventRow]]:
    found: list[EventRow] = []
    cursor: str | None = None
    pages = 0
    while pages == 0 or cursor is not None:
        page, cursor = store.reader.events("run", limit=limit, cursor=cursor, **chosen)  # type: ignore[arg-type]
        found.extend(page)
        pages += 1
    return pages, found


def test_every_event_comes_once_in_the_order_of_the_steps(store: Store) -> None:
    say = Dictation()
    steps = [5, 3, 3, 9, 0, 3, 7]
    store.writer.append(batch(hello(), *(say.event(step) for step in steps))).result()
    pages, found = all_events(store, 2)
    assert (pages, [event.step for event in found]) == (4, sorted(steps))
    assert len({event.id for event in found}) == len(steps)


def test_events_are_chosen_by_kind_and_steps(store: Store) -> None:
    say = Dictation()
    records = [say.event(step, "skip" if step % 2 else "growth") for step in range(10)]
    store.writer.append(batch(hello(), *records)).result()
    assert [event.step for event in all_events(store, 1, kind="skip", start=3, stop=9)[1]] == [3, 5, 7]


def test_an_event_keeps_its_data_and_what_json_cannot_hold_becomes_text(store: Store) -> None:
    data = '{"scale": Infinity, "next_scale": 1e999, "parameter": "größe", "nonfinite": {"w": 3}, "odd": "\\ud800"}'
    store.writer.append(batch(hello(rank=1), Dictation().event(4, "skip", data))).result()
    (event,), _ = store.reader.events("run")
    expected = {"scale": "inf", "next_scale": "inf", "parameter": "größe", "nonfinite": {"w": 3}, "odd": "?"}
    assert (event.kind, event.step, event.rank, event.at, event.data) == ("skip", 4, 1, 4.0, expected)


def test_the_judge_reads_updates_of_rank_0_beyond_its_position_with_their_culprit(store: Store) -> None:
    say = Dictation()
    skip = say.event(2, "skip", '{"parameter": "w"}')
    steps = say.steps(0, 4, skipped={2: 1.0}, scale=[8.0] * 4, growth_tracker=[0, 1, 2, 0])
    store.writer.append(batch(hello(), skip, steps)).result()
    other = Dictation()
    records = (other.event(2, "skip", '{"parameter": "other"}'), other.event(3, "skip", '{"parameter": null}'))
    store.writer.append(batch(hello(rank=1), *records, other.steps(0, 4))).result()
    store.writer.append(batch(hello(segment="second"), Dictation().steps(0, 1))).result()
    found, stored = store.reader.steps_after("run", Position(0, 1), 10)
    assert stored == 5
    assert found == [
        StepRow(2, 0, 8.0, True, 2, "w"),
        StepRow(3, 0, 8.0, False, 0, None),
        StepRow(4, 1, None, False, None, None),
    ]
    assert [row.step for row in store.reader.steps_after("run", BEFORE_ALL, 2)[0]] == [0, 1]
    assert store.reader.steps_after("run", Position(1, 4), 2) == ([], 5)
    assert store.reader.scaler("run") == {
        "name": "GradScaler",
        "enabled": True,
        "scale": 65536.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
    }


def test_the_judge_reads_at_which_updates_a_scaler_was_made_anew(store: Store) -> None:
    say = Dictation()
    usual, odd = {"zero_grad": True}, {"zero_grad": True, "scaler_recreated": True}
    store.writer.append(batch(hello(), say.steps(0, 9, (3, usual), (2, odd), (3, usual), (1, odd)))).result()
    other = {"optimizers": ["scaler_recreated"]}
    store.writer.append(batch(hello(segment="second"), Dictation().steps(0, 3, (2, other), (1, odd)))).result()
    found, _ = store.reader.steps_after("run", BEFORE_ALL, 20)
    assert [row.step for row in found if row.recreated] == [3, 4, 8, 11]
    assert [row.step for row in store.reader.steps_after("run", Position(0, 3), 2)[0] if row.recreated] == [4]


def test_the_judge_reads_which_steps_the_loop_left_out(store: Store) -> None:
    say = Dictation()
    left_out = say.event(1, "skip", '{"parameter": null, "reason": "not stepped"}')
    unknown = say.event(2, "skip", '{"parameter": null, "reason": "not known"}')
    steps = say.steps(0, 4, skipped={1: 1.0, 2: 1.0}, scale=[8.0] * 4)
    store.writer.append(batch(hello(), left_out, unknown, steps)).result()
    found, _ = store.reader.steps_after("run", BEFORE_ALL, 10)
    assert [row.step for row in found if row.left_out] == [1]
    assert [row.step for row in found if row.skipped] == [2]


def test_the_judge_reads_at_which_updates_the_loss_was_not_finite(store: Store) -> None:
    steps = Dictation().steps(0, 4, scale=[8.0] * 4, loss={0: 1.0, 1: math.inf, 2: math.nan})
    store.writer.append(batch(hello(), steps)).result()
    assert [row.step for row in store.reader.steps_after("run", BEFORE_ALL, 10)[0] if row.broken] == [1, 2]


def test_the_judge_reads_what_a_run_is_set_up_like(store: Store) -> None:
    say = Dictation()
    told = (
        say.layout(("a", "fp16"), ("b", "fp32"), ("c", None)),
        say.setup(0, autocast={"cuda": "fp16", "cpu": None}),
        say.sample(0, histograms([0], [0], [0])),
        say.steps(0, 1),
    )
    store.writer.append(batch(hello(world_size=1), *told)).result()
    known = {"fp16": 8, "fp32": 8, "": 8}
    assert store.reader.setting("run") == Setting(known, ("fp16",), zero=False, ended=False)
    silent = histograms([], [], [], zero=8)
    store.writer.append(batch(hello(world_size=1), say.sample(1, silent), say.steps(1, 1), say.bye())).result()
    assert store.reader.setting("run") == Setting(known, ("fp16",), zero=True, ended=True)


def test_what_was_not_told_of_a_run_is_not_known(store: Store) -> None:
    store.writer.append(batch(hello(), Dictation().steps(0, 1))).result()
    assert store.reader.setting("run") == Setting()


def test_zero_gradients_of_several_ranks_are_those_of_all_of_them(store: Store) -> None:
    for rank, exponents in ((0, ()), (1, (0,))):
        say = Dictation()
        parts = [Part("sharded", 4, leads=rank == 0)]
        told = (say.layout(("a", "fp16"), parts=parts), say.sample(0, histograms(exponents, zero=3)), say.steps(0, 1))
        store.writer.append(batch(hello(rank=rank), *told)).result()
    assert store.reader.setting("run").zero is False
