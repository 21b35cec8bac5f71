"""What a server does to its database by itself: deleted runs are erased, what is old is pruned."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager

import pytest
from scalescope_server.judge_pass import judge_once
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.records import RunId
from scalescope_server.upkeep import Upkeep
from websockets.exceptions import ConnectionClosed

from tests.batches import Dictation, batch, hello
from tests.exported import rows
from tests.serving import DEADLINE_S, Served
from tests.serving import hello as trainer_hello
from tests.serving import steps as trainer_steps

RUN = RunId("run")


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with closing(open_store(database)) as store:
        store.writer.append(batch(hello(world_size=1), Dictation().steps(0, 1024), at=1.0)).result()
        judge_once(store, RUN)
        yield store


@contextmanager
def keeping(upkeep: Upkeep) -> Iterator[Upkeep]:
    upkeep.start()
    try:
        yield upkeep
    finally:
        upkeep.stop()


def until(true: Callable[[], bool]) -> None:
    ends, waiting = time.monotonic() + DEADLINE_S, threading.Event()
    while not true():
        assert time.monotonic() < ends
        waiting.wait(0.01)


def nothing_is_left(store: Store) -> bool:
    """Whether no deleted run is left to erase."""
    with store.reader.reading() as connection:
        return connection.exec_driver_sql("SELECT key FROM run WHERE doomed").first() is None


def test_what_is_old_is_pruned_and_what_is_young_is_not(store: Store) -> None:
    with keeping(Upkeep(store, prune_older_than_s=1000.0, clock=lambda: 5000.0)):
        until(lambda: rows(store.reader, "updates") == [])
    assert store.reader.series("run", ["attempted"])[1]["attempted"].sum.sum() == 1024
    with keeping(Upkeep(store, prune_older_than_s=1e6, clock=lambda: 5000.0)) as upkeep:
        upkeep.wake()
    assert store.reader.latest("run").attempted == 1024


def test_without_an_age_everything_stays(store: Store) -> None:
    with keeping(Upkeep(store, clock=lambda: 1e12)) as upkeep:
        store.writer.append(batch(hello("other"), Dictation().steps(0, 1))).result()
        store.writer.delete_run(RunId("other")).result()
        upkeep.wake()
        until(lambda: nothing_is_left(store))
    assert len(rows(store.reader, "updates")) == 1024


def test_what_was_left_when_a_server_stopped_is_erased_by_the_next(store: Store) -> None:
    store.writer.delete_run(RUN).result()
    with keeping(Upkeep(store)):
        until(lambda: nothing_is_left(store))


def test_a_deleted_run_is_erased_by_its_server_and_its_trainer_is_told(
    serve: Callable[..., AbstractContextManager[Served]],
) -> None:
    with serve() as served, served.trainer(trainer_hello(world_size=1)) as trainer:
        trainer.deliver(trainer_steps(0, 0, 64))
        assert served.call("DELETE", "/api/runs/run-1").status == 204
        assert served.get("/api/runs").json()["items"] == []
        until(lambda: nothing_is_left(served.store))
        trainer.send(trainer_steps(1, 64))
        refused = trainer.received()
        assert "was deleted on the server" in getattr(refused, "message", "")
        with pytest.raises(ConnectionClosed):
            trainer.received()


def test_a_server_prunes_as_it_was_told(serve: Callable[..., AbstractContextManager[Served]]) -> None:
    # Updates were told at 1.7e9 seconds, two months ago by the clock of the server that prunes.
    with serve(clock=lambda: 1_700_000_000.0) as served:
        with served.trainer(trainer_hello(world_size=1)) as trainer:
            trainer.deliver(trainer_steps(0, 0, 64))
        until(lambda: served.store.reader.unjudged() == [])
    with serve(clock=lambda: 1_705_000_000.0, prune_older_than_s=86_400.0) as served:
        until(lambda: served.store.reader.prunable(1e12)[0].looked_at == 64)
        answer = served.get("/api/runs/run-1/series?name=scale").json()
        assert (answer["bucket"], answer["series"]["scale"]["n"]) == (8, [8] * 8)
        assert served.get("/api/runs/run-1").json()["pruned_below"] == 64
