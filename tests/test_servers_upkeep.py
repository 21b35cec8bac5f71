"""Servers that erase and prune the same Postgres at once: done once, whole, and in nobody's way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from scalescope_server.store import erasing, holding, pruning
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.pruning import Removed
from scalescope_server.store.records import RunId

from tests.batches import Dictation, batch, hello
from tests.exported import fill as fill_run
from tests.exported import rows
from tests.postgres import Cluster
from tests.test_store_erasing import left
from tests.test_store_pruning import AROUND, RUN, fill, prune, steps_of

SERVERS = 3


@pytest.fixture
def url(postgres: Cluster) -> str:
    return postgres.new(postgres.template)


@pytest.fixture
def stores(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sequence[Store]]:
    # One waits for the other, and sends nobody away as it would after half a second.
    monkeypatch.setattr(holding, "HELD_WITHIN", "20s")
    with ExitStack() as open_ones:
        yield [open_ones.enter_context(closing(open_store(url))) for _ in range(SERVERS)]


def at_once(work: Callable[[Store], Removed], stores: Sequence[Store]) -> list[Removed]:
    with ThreadPoolExecutor(SERVERS) as pool:
        return list(pool.map(work, stores))


def whole(store: Store) -> list[float]:
    """What a view of all of the run is made of."""
    _, found = store.reader.series(RUN, ["loss", "mine", "scale"], points=10)
    return [value for series in found.values() for value in [*series.n.tolist(), *series.sum.tolist()]]


def test_deleted_runs_are_erased_once_while_others_are_written(
    stores: Sequence[Store], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "PIECE_ROWS", 10)
    monkeypatch.setattr(erasing, "PIECE_TABLES", 1)
    for run in ("kept", *map(str, range(SERVERS))):
        fill_run(stores[0], run)
    kept = rows(stores[0].reader, "updates", run="kept")
    for number, store in enumerate(stores):
        store.writer.delete_run(RunId(str(number))).result()

    def erase(store: Store) -> Removed:
        says, written = Dictation(), 0
        while store.writer.erase().result() or written < 5:
            store.writer.append(batch(hello(f"beside-{id(store)}"), says.steps(written, 1))).result()
            written += 1
        return Removed(updates=written)

    written = at_once(erase, stores)
    while stores[0].writer.erase().result():
        pass
    found = {run.id: run.attempted for run in stores[0].reader.runs()[0]}
    expected = {f"beside-{id(store)}": each.updates for store, each in zip(stores, written, strict=True)}
    assert found == expected | {"kept": found["kept"]}
    assert rows(stores[0].reader, "updates", run="kept") == kept
    for run in found:
        stores[0].writer.delete_run(RunId(run)).result()
    while stores[0].writer.erase().result():
        pass
    assert set(left(url)) == {"deleted"}


def test_what_several_prune_at_once_is_removed_and_counted_once(
    stores: Sequence[Store], postgres: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "PIECE_STEPS", 64)
    with closing(open_store(postgres.new(postgres.template))) as alone:
        fill(alone)
        expected, rolled_up = prune(alone), whole(alone)
    fill(stores[0])
    parts = at_once(prune, stores)
    total = Removed()
    for part in parts:
        total = total.plus(part)
    assert (total, steps_of(stores[0])) == (expected, AROUND)
    assert whole(stores[0]) == rolled_up
