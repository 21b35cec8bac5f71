"""Parameters and modules of a run: one list of each, whoever tells them and in whatever order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scalescope.wire import Layout, Part
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.errors import BadRecord

from tests.batches import Dictation, batch, hello, histograms

pytestmark = pytest.mark.both_engines


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database)
    yield opened
    opened.close()


def test_ranks_and_segments_share_one_list_of_parameters(store: Store) -> None:
    say = Dictation()
    store.writer.append(
        batch(hello(), say.layout(("a", None), ("b", "fp16"), backward=[1, 0]), say.sample(0, histograms([0], [1])))
    ).result()
    say = Dictation()
    other = hello(segment="second")
    store.writer.append(
        batch(other, say.layout(("c", None), ("b", None)), say.sample(0, histograms([3], [2])), say.steps(0, 1))
    ).result()
    listed = store.reader.run("run").parameters
    assert [(p.name, p.index, p.backward, p.compute_format) for p in listed] == [
        ("a", 0, 1, None),
        ("b", 1, 0, "fp16"),
        ("c", 2, None, None),
    ]
    bucket, found = store.reader.samples("run")
    assert bucket == 1
    assert [sample.samples.tolist() for sample in found] == [[1, 1, 0], [0, 1, 1]]
    assert [sample.table.amax.tolist() for sample in found] == [[1.0, 2.0, 0.0], [0.0, 4.0, 8.0]]


def test_ranks_and_segments_share_one_list_of_modules(store: Store) -> None:
    one, other = Dictation(), Dictation()
    first = (one.layout(modules=["", "a", "b"]), one.sample(0, histograms([0], [1], [2]), kind="forward", scale=None))
    second = (other.layout(modules=["b", "c"]), other.sample(0, histograms([3], [4]), kind="forward", scale=None))
    store.writer.append(batch(hello(), *first)).result()
    store.writer.append(batch(hello(rank=1), *second)).result()
    listed = store.reader.run("run").modules
    assert [(m.name, m.kind, m.index) for m in listed] == [(n, "Linear", i) for i, n in enumerate(("", "a", "b", "c"))]
    for rank, amax in ((0, [1.0, 2.0, 4.0, 0.0]), (1, [0.0, 0.0, 8.0, 16.0])):
        _, (found,) = store.reader.samples("run", kind="forward", rank=rank)
        assert found.table.amax.tolist() == amax


def test_a_later_layout_adds_modules_and_the_parameters_stay(store: Store) -> None:
    say = Dictation()
    store.writer.append(batch(hello(), say.layout(("a", "fp16"), modules=["x"]))).result()
    store.writer.append(batch(hello(), say.layout(("a", None), modules=["x", "y"]))).result()
    detail = store.reader.run("run")
    assert ([m.name for m in detail.modules], [p.compute_format for p in detail.parameters]) == (["x", "y"], ["fp16"])


SAY = Dictation()
BAD = [
    [SAY.layout(("a", None), ("a", None))],
    [SAY.layout(("a", None), ("b", None)), SAY.layout(("b", None), ("a", None))],
    [SAY.layout(("a", None), ("b", None)), SAY.layout(("a", None))],
    [SAY.layout(modules=["a", "a"])],
    [SAY.layout(modules=["a", "b"]), SAY.layout(modules=["b", "a"])],
    [SAY.layout(("a", None), backward=[1])],
]


@pytest.mark.parametrize("layouts", BAD)
def test_a_layout_that_names_twice_or_moves_what_it_named_is_refused(store: Store, layouts: list[Layout]) -> None:
    with pytest.raises(BadRecord, match="layout"):
        store.writer.append(batch(hello(), *layouts)).result()


def test_a_sample_of_outputs_counts_in_modules(store: Store) -> None:
    say = Dictation()
    layout = say.layout(("a", None), ("b", None), modules=["x"])
    outside = say.sample(0, histograms([0], [0]), kind="grad_output")
    with pytest.raises(BadRecord, match="expected the index of one of the 1 modules of the layout, got 1"):
        store.writer.append(batch(hello(), layout, outside)).result()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([Part("sharded", 4, True)], "expected a part for each of the 2 parameters, or none, got 1"),
        ([Part("local", 9, True)] * 2, "expected at most 8 elements of 'a', got 9"),
    ],
)
def test_parts_that_cannot_be_are_refused_and_the_store_goes_on(store: Store, parts: list[Part], message: str) -> None:
    say = Dictation()
    with pytest.raises(BadRecord, match=message):
        store.writer.append(batch(hello(), say.layout(("a", None), ("b", None), parts=parts))).result()
    store.writer.append(batch(hello(), Dictation().layout(("a", None), ("b", None)))).result()
    assert [p.name for p in store.reader.run("run").parameters] == ["a", "b"]


def test_a_segment_has_as_many_ranks_as_any_of_them_says(store: Store) -> None:
    for rank, world_size in ((0, 1), (5, 4), (1, 2)):
        store.writer.append(batch(hello(rank=rank, world_size=world_size), Dictation().steps(0, 1))).result()
    assert store.reader.run("run").world_size == 6
