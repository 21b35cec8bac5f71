"""A Postgres that is stopped, killed, frozen or replaced under a running server: nothing acknowledged is lost, nothing
is stored twice, trainers are told to wait, and the server lives.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from scalescope.wire import Refused
from scalescope_server.store.engine import open_store
from scalescope_server.store.errors import Unavailable
from scalescope_server.store.outages import outage, reason
from scalescope_server.store.records import RunId
from sqlalchemy.exc import OperationalError

from tests.batches import Dictation, batch
from tests.batches import hello as caller
from tests.postgres import Cluster, cluster
from tests.serving import DEADLINE_S, Served, hello, layout, serving, steps


@pytest.fixture(scope="module")
def fragile() -> Iterator[Cluster]:
    """A cluster that the tests here stop and start; it runs before and after each of them."""
    with cluster() as running:
        yield running


@pytest.fixture
def url(fragile: Cluster) -> str:
    return fragile.new(fragile.template)


@contextmanager
def frozen(running: Cluster) -> Iterator[None]:
    """All processes of the cluster stopped: connections stand, and nobody answers."""
    processes = running.processes()
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < ends, "never came true"
        threading.Event().wait(0.02)


def refusal_of(served: Served) -> Refused:
    """What a trainer gets that sends while the database is away."""
    with served.trainer() as trainer:
        trainer.send(hello())
        message = trainer.received()
        assert isinstance(message, Refused), message
        return message


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_store_goes_on_by_itself_when_its_database_is_back(fragile: Cluster, url: str, mode: str) -> None:
    with closing(open_store(url)) as store:
        store.writer.append(batch(caller(), Dictation().steps(0, 3))).result(DEADLINE_S)
        assert store.reader.latest("run").attempted == 3
        fragile.stop(mode)
        again = batch(caller(), Dictation().steps(0, 3), Dictation(1).steps(3, 2))
        for _ in range(2):
            with pytest.raises(Unavailable, match="the database does not answer: "):
                store.writer.append(again).result(DEADLINE_S)
            with pytest.raises(Unavailable, match="the database does not answer: "):
                store.reader.latest("run")
            with pytest.raises(Unavailable):
                store.is_ready()
        fragile.start()
        # Connections from before the restart are found out before they are used.
        assert store.is_ready()
        assert store.reader.latest("run").attempted == 3
        receipt = store.writer.append(again).result(DEADLINE_S)
        assert (receipt.stored, receipt.duplicates, store.reader.latest("run").attempted) == (1, 1, 5)


def test_a_server_tells_trainers_to_wait_and_monitors_that_it_is_not_ready(fragile: Cluster, url: str) -> None:
    with serving(url) as served:
        with served.trainer(hello()) as trainer:
            trainer.deliver(layout(0), steps(1, 0, 4))
            until(served.is_ready)
            fragile.stop()
            trainer.send(steps(2, 4))
            message = trainer.received()
            assert isinstance(message, Refused)
            assert (message.code, message.retry) == ("unavailable", True)
        assert refusal_of(served).retry
        assert served.get("/readyz").status == 503
        assert served.get("/api/runs/run-1").status == 503
        assert served.get("/healthz").status == 200
        fragile.start()
        with served.trainer(hello()) as trainer:
            trainer.deliver(steps(2, 4))
        until(served.is_ready)
        assert served.get("/api/runs/run-1").json()["attempted"] == 5


def test_a_database_that_hangs_holds_nothing_up_but_what_needs_it(fragile: Cluster, url: str) -> None:
    with serving(url) as served, served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), steps(1, 0))
        with frozen(fragile):
            trainer.send(steps(2, 1))
            # Each answer has its deadline, and the database does not go on before the last.
            assert served.get("/readyz").status == 503
            for _ in range(10):
                assert served.get("/healthz").status == 200
        trainer.deliver(steps(3, 2))
        assert served.store.reader.latest(RunId("run-1")).attempted == 3


def test_what_was_acknowledged_before_a_crash_in_the_middle_is_there_and_nothing_twice(
    fragile: Cluster, url: str
) -> None:
    say = Dictation()
    batches = [batch(caller(), say.steps(4 * i, 4, loss=[1.0] * 4)) for i in range(60)]
    with closing(open_store(url)) as store:
        store.writer.append(batches[0]).result(DEADLINE_S)
        futures = [store.writer.append(each) for each in batches[1:]]
        fragile.kill()
        lost = [each for each, future in zip(batches[1:], futures, strict=True) if future.exception(DEADLINE_S)]
        fragile.start()
        acknowledged = len(batches) - len(lost)
        assert store.reader.latest("run").attempted >= 4 * acknowledged
        for each in batches:
            store.writer.append(each).result(DEADLINE_S)
        _, found = store.reader.series("run", ["loss"])
        assert found["loss"].step.tolist() == list(range(240))
        _, rolled = store.reader.series("run", ["loss"], points=1)
        assert (rolled["loss"].n.tolist(), rolled["loss"].sum.tolist()) == ([240], [240.0])


def test_a_server_follows_to_the_standby_that_takes_over() -> None:
    with cluster() as first, first.standby() as second:
        database = first.new(first.template)
        both = database + f"&host={second.folder}"
        with serving(both) as served:
            with served.trainer(hello()) as trainer:
                trainer.deliver(layout(0), steps(1, 0, 4))
            first.kill()
            assert served.get("/readyz").status == 503
            # A standby only reads: it would be asked in vain to store, and show the past.
            assert refusal_of(served).message.endswith("session is read-only")
            second.promote()
            until(served.is_ready)
            with served.trainer(hello()) as trainer:
                assert trainer.durable == -1
                trainer.deliver(steps(2, 4))
            assert served.get("/api/runs/run-1").json()["attempted"] == 5


def test_of_a_long_story_the_reason_is_told() -> None:
    refused = 'connection failed: connection to server at "::1", port 1 failed: Connection refused\n\tIs it running?'
    several = f"{refused}\nMultiple connection attempts failed. All failures were:\n- host: 'a': {refused}"
    password = 'connection failed: connection to server at "h" failed: FATAL:  password authentication failed for "x"'
    for told, expected in [
        (refused, "Connection refused"),
        (several, "Connection refused"),
        (password, 'password authentication failed for "x"'),
        ("database is locked", "database is locked"),
    ]:
        error = OperationalError("SELECT 1", None, Exception(told))
        assert reason(error) == expected
        assert str(outage(error)) == f"the database does not answer: {expected}"
