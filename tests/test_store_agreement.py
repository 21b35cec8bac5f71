"""Updates that ranks tell differently: the first of them, in whatever order the ranks come."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest
from scalescope_server.store.engine import Store, open_store

from tests.batches import Dictation, Values, batch, hello

pytestmark = pytest.mark.both_engines


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database)
    yield opened
    opened.close()


def tell(store: Store, rank: int, *chunks: tuple[int, int], world_size: int = 3, **columns: Values) -> None:
    """``chunks``: (first, count) of each record, in a batch of its own."""
    say = Dictation()
    for first, count in chunks:
        some = {
            name: {row - first: value for row, value in _pairs(values) if first <= row < first + count}
            for name, values in columns.items()
        }
        store.writer.append(batch(hello(rank=rank, world_size=world_size), say.steps(first, count, **some))).result()


def _pairs(values: Values) -> list[tuple[int, float]]:
    return list(values.items()) if not isinstance(values, Sequence) else list(enumerate(values))


def found(store: Store) -> dict[str, int]:
    return {each.name: each.step for each in store.reader.run("run").disagreements}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_first_update_that_differs_is_found_in_whatever_order_ranks_come(store: Store, order: list[int]) -> None:
    scales = {0: [8.0] * 12, 1: [8.0] * 7 + [4.0] * 5, 2: [8.0] * 9 + [2.0] * 3}
    for rank in order:
        skipped = {6: 1.0} if rank == 1 else {}
        tell(store, rank, (0, 5), (5, 7), scale=scales[rank], skipped=skipped)
    assert found(store) == {"scale": 7, "skipped": 6}


def test_ranks_that_agree_have_no_disagreement(store: Store) -> None:
    for rank in range(3):
        tell(store, rank, (0, 10), scale=[float("inf")] * 10, skipped={3: 1.0})
    assert found(store) == {}


def test_what_one_rank_does_not_tell_is_no_disagreement(store: Store) -> None:
    tell(store, 0, (0, 10), scale=[8.0] * 10)
    tell(store, 1, (0, 12), scale={3: 8.0})
    assert found(store) == {}


def test_a_scale_that_is_not_finite_differs_from_one_that_is(store: Store) -> None:
    tell(store, 0, (0, 4), scale=[8.0, float("inf"), 8.0, 8.0])
    tell(store, 1, (0, 4), scale=[8.0] * 4)
    assert found(store) == {"scale": 1}


def test_a_gap_in_what_the_farthest_rank_told_is_compared_with_another_one(store: Store) -> None:
    tell(store, 0, (0, 10), scale=[8.0] * 10)
    tell(store, 1, (0, 2), (6, 8), scale=[8.0] * 14)
    tell(store, 2, (0, 10), scale=[8.0] * 4 + [4.0] + [8.0] * 5)
    assert found(store) == {"scale": 4}


def test_a_resumed_segment_is_compared_with_its_own_ranks(store: Store) -> None:
    tell(store, 0, (0, 10), scale=[8.0] * 10)
    store.writer.append(batch(hello(segment="second"), Dictation().steps(0, 4, scale=[4.0] * 4))).result()
    assert found(store) == {}
