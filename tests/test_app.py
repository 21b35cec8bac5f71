"""The application as a whole: headers, the published prefix, a locked database, stopping in order."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from typing import Any

import pytest
from scalescope.wire import Refused
from scalescope_server import app, live
from scalescope_server.live import Hub
from scalescope_server.store import sqlite
from scalescope_server.store.engine import open_store
from scalescope_server.store.reader import Reader
from scalescope_server.store.records import RunId
from sqlalchemy import event
from websockets.exceptions import ConnectionClosed

from tests.serving import DEADLINE_S, Served, hello, layout, steps
from tests.small_link import until

Serve = Callable[..., AbstractContextManager[Served]]


def test_every_answer_has_the_security_headers_and_a_nonce_of_its_own(served: Served) -> None:
    answers = [served.get(path) for path in ("/", "/healthz", "/api/runs/unheard-of", "/nothing")]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert "server" not in answer.headers
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe-eval" not in policy
        assert "script-src 'self' 'nonce-" in policy
        assert "'unsafe-inline'" not in policy.replace("style-src-attr 'unsafe-inline'", "")
    nonces = {re.findall(r"nonce-([\w-]+)", answer.headers["content-security-policy"])[0] for answer in answers}
    assert len(nonces) == len(answers)
    page = answers[0]
    nonce = re.findall(r"nonce-([\w-]+)", page.headers["content-security-policy"])[0]
    assert f'nonce="{nonce}"' in page.body.decode()


def test_the_server_answers_below_its_prefix_whether_or_not_the_proxy_strips_it(serve: Serve) -> None:
    with serve(root_path="/scope") as served:
        for path in ("/scope/healthz", "/healthz", "/scope/api/runs", "/api/runs", "/scope", "/scope/"):
            assert served.get(path).status == 200, path
        assert served.get("/scopehealthz").status == 404
        assert 'data-root="/scope"' in served.get("/scope/").body.decode()


def test_pages_that_read_for_long_do_not_make_the_server_unready(serve: Serve) -> None:
    reading, answer = threading.Event(), threading.Event()

    def linger(*about: Any) -> None:
        if "FROM series" in about[2]:
            reading.set()
            answer.wait(DEADLINE_S)

    with serve(readers=1) as served, served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), steps(1, 0))
        event.listen(served.store._reading, "before_cursor_execute", linger)
        page = threading.Thread(target=served.get, args=["/api/runs/run-1/series"])
        page.start()
        assert reading.wait(DEADLINE_S)
        until(served.is_ready)
        until(lambda: 'scalescope_runs{state="running"} 1' in served.get("/metrics").body.decode())
        answer.set()
        page.join()


def test_a_locked_database_delays_neither_health_nor_reads(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever waits for the lock does so for longer than the answers may take.
    monkeypatch.setattr(sqlite, "BUSY_MS", 5000 * int(DEADLINE_S))
    with (
        serve() as served,
        closing(sqlite3.connect(served.settings.database, isolation_level=None)) as other,
        served.trainer(hello()) as trainer,
    ):
        trainer.deliver(layout(0))
        other.execute("BEGIN IMMEDIATE")
        trainer.send(steps(1, 0))
        began = time.monotonic()
        for _ in range(20):
            assert served.get("/healthz").status == 200
        until(served.is_ready)
        assert served.get("/api/runs/run-1").json()["attempted"] == 0
        assert time.monotonic() - began < DEADLINE_S
        other.execute("COMMIT")
        trainer.deliver(steps(2, 1))
    assert served.store.reader.latest(RunId("run-1")).attempted == 2


def test_a_server_whose_database_takes_no_writes_is_not_ready_until_one_is_stored(served: Served) -> None:
    only_reading = ["OFF"]

    def set_up(connection: sqlite3.Connection, *_: Any) -> None:
        """What a file system that is mounted read-only comes to: to read goes on."""
        connection.execute(f"PRAGMA query_only = {only_reading[0]}")

    event.listen(served.store._writing, "checkout", set_up)
    with served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), steps(1, 0))
        only_reading[0] = "ON"
        trainer.send(steps(2, 1))
        assert isinstance(trainer.received(), Refused)
    told = "nothing can be written: the database does not answer: attempt to write a readonly database"
    until(lambda: served.get("/readyz").json().get("error", {}).get("message") == told)
    assert served.get("/readyz").status == 503
    assert served.get("/healthz").status == 200
    only_reading[0] = "OFF"
    with served.trainer(hello()) as trainer:
        trainer.deliver(steps(2, 1))
    until(served.is_ready)


def test_an_unreadable_database_is_told_as_such_while_the_server_lives(served: Served) -> None:
    with closing(sqlite3.connect(served.settings.database, isolation_level=None)) as other:
        other.execute("ALTER TABLE run RENAME TO gone")
        assert served.get("/healthz").status == 200
        assert served.get("/api/runs").status in (500, 503)
        assert served.get("/api/runs").json()["error"]["code"] in ("internal", "unavailable")


def test_a_server_that_gives_pages_no_news_any_more_is_not_ready(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = threading.Event()

    def sweep(_: Hub) -> None:
        if failing.is_set():
            raise KeyError("a mistake")

    monkeypatch.setattr(live, "SWEEP_EVERY_S", 0.01)
    monkeypatch.setattr(Hub, "sweep", sweep)
    with serve() as served:
        until(served.is_ready)
        failing.set()
        until(lambda: served.get("/readyz").status == 503)
        assert "restart it" in served.get("/readyz").json()["error"]["message"]
        assert served.get("/healthz").status == 200


def test_a_server_that_delivers_no_alerts_any_more_is_not_ready(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def due_in(_: Reader) -> float | None:
        raise KeyError("a mistake")

    monkeypatch.setattr(Reader, "deliveries_due_in", due_in)
    with serve() as served:
        until(lambda: served.get("/readyz").status == 503)
        assert "alerts are not delivered any more" in served.get("/readyz").json()["error"]["message"]
        assert served.get("/healthz").status == 200


def test_stopping_with_open_sockets_is_quick_and_keeps_what_was_acknowledged(
    serve: Serve, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "STOP_WITHIN_S", 5 * int(DEADLINE_S))
    with serve() as served, served.trainer(hello()) as trainer, served.page() as page:
        trainer.deliver(layout(0), steps(1, 0, 5))
        began = time.monotonic()
        served.stop()
        with pytest.raises(ConnectionClosed):
            trainer.received()
        with pytest.raises(ConnectionClosed):
            page.until(lambda message: message["type"] == "never")
    assert time.monotonic() - began < DEADLINE_S
    with closing(open_store(database)) as store:
        assert store.reader.latest(RunId("run-1")).attempted == 5


def test_the_same_database_serves_again_after_a_restart(serve: Serve) -> None:
    with serve() as served, served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), steps(1, 0, 5))
    with serve() as served, served.trainer(hello()) as trainer:
        trainer.deliver(steps(2, 5))
        assert served.get("/api/runs/run-1").json()["attempted"] == 6
