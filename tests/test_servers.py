"""Several servers on one Postgres: any of them takes any trainer and serves any page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from scalescope.wire import Heartbeat, Refused, Welcome
from scalescope_server.store.postgres import Postgres
from scalescope_server.store.records import RunId
from scalescope_server.store.telegrams import Alone
from scalescope_server.store.transaction import Transaction
from websockets.exceptions import ConnectionClosed

from tests.postgres import Cluster
from tests.serving import Served, Trainer, bye, hello, layout, ok, serving, skip, steps
from tests.small_link import feed, linked, until

TOKEN = "the-token-of-all"


@pytest.fixture
def url(postgres: Cluster) -> str:
    return postgres.new(postgres.template)


@pytest.fixture
def servers(url: str) -> Iterator[tuple[Served, Served]]:
    """Two that hear each other."""
    with ExitStack() as running:
        first, second = (running.enter_context(serving(url)) for _ in range(2))
        until(lambda: all("scalescope_hears_servers 1" in metrics(server) for server in (first, second)))
        yield first, second


def metrics(server: Served) -> str:
    return server.get("/metrics").body.decode()


def judging(server: Served) -> int:
    found = re.search(r"^scalescope_judged_runs (\d+)$", metrics(server), re.MULTILINE)
    assert found is not None
    return int(found[1])


def judged(server: Served) -> int:
    return server.store.reader.judgement("run-1")[0]


def lost(trainer: Trainer) -> Refused:
    """The refusal that ends a connection."""
    while not isinstance(message := trainer.received(), Refused):
        pass
    with pytest.raises(ConnectionClosed):
        trainer.received()
    return message


def test_a_page_of_one_server_shows_what_a_trainer_sends_to_another(servers: tuple[Served, Served]) -> None:
    first, second = servers
    with first.page("run-1") as page, first.page() as every, second.trainer(hello(world_size=1)) as trainer:
        trainer.deliver(layout(0), steps(1, 0, count=4, skipped=[0.0, 1.0, 0.0, 0.0]))
        told = page.until(lambda message: message.get("attempted") == 4)
        assert (told["state"], told["skipped"], told["scale"]) == ("running", 1, 65536.0)
        trainer.deliver(bye(2))
        page.until(lambda message: message.get("state") == "finished")
        every.until(lambda message: message.get("state") == "finished")
        assert ok(first, "/api/runs/run-1") == ok(second, "/api/runs/run-1")


def test_what_cannot_be_heard_is_seen(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a pooler that lends a connection for a transaction at a time, LISTEN hears nothing."""
    monkeypatch.setattr(Postgres, "telegraph", lambda _: Alone())
    with serving(url) as first, serving(url) as second, first.page("run-1") as page:
        with second.trainer(hello(world_size=1)) as trainer:
            trainer.deliver(layout(0), steps(1, 0, count=4))
        page.until(lambda message: message.get("attempted") == 4)
        assert second.call("DELETE", "/api/runs/run-1").status == 204
        page.until(lambda message: message["type"] == "refetch")


def test_what_people_say_of_a_run_and_its_end_are_news_everywhere(servers: tuple[Served, Served]) -> None:
    first, second = servers
    with second.trainer(hello(world_size=1)) as trainer:
        trainer.deliver(layout(0), steps(1, 0))
    with first.page("run-1") as page:
        page.until(lambda message: message.get("attempted") == 1)
        told = len(page.told)
        assert second.call("PATCH", "/api/runs/run-1", body={"name": "renamed"}).status == 200
        page.until(lambda message: message["type"] == "news")
        assert len(page.told) > told
        assert second.call("DELETE", "/api/runs/run-1").status == 204
        page.until(lambda message: message["type"] == "refetch")
        assert first.get("/api/runs/run-1").status == 404


def test_one_server_judges_a_run_and_the_other_when_that_one_stops(url: str) -> None:
    with ExitStack() as staying:
        second = staying.enter_context(serving(url))
        with serving(url) as first, first.trainer(hello(world_size=1)) as trainer:
            trainer.deliver(layout(0), steps(1, 0, 100))
            until(lambda: judged(first) == 100)
            until(lambda: sorted((judging(first), judging(second))) == [0, 1])
        with second.trainer(hello(world_size=1)) as trainer:
            trainer.deliver(steps(2, 100, 100))
            until(lambda: judged(second) == 200 and judging(second) == 1)


def test_whoever_judges_a_run_hears_of_it_from_the_others(servers: tuple[Served, Served]) -> None:
    first, second = servers
    with first.trainer(hello(world_size=2)) as trainer, second.trainer(hello(rank=1)) as neighbour:
        neighbour.deliver(layout(0), steps(1, 0, 60, skipped=[0.0] * 59 + [1.0]))
        trainer.deliver(layout(0), skip(1, 59), steps(2, 0, 60, skipped=[0.0] * 59 + [1.0]))
        until(lambda: judged(second) == 60)
    assert ok(first, "/api/runs/run-1/findings") == ok(second, "/api/runs/run-1/findings")


def test_the_later_of_two_connections_of_one_rank_wins_whichever_servers_they_are_with(
    servers: tuple[Served, Served],
) -> None:
    first, second = servers
    with first.trainer(hello()) as earlier:
        earlier.deliver(layout(0), steps(1, 0))
        with second.trainer() as later:
            later.send(hello())
            welcome = later.received()
            assert isinstance(welcome, Welcome)
            assert welcome.durable == 1
            # It learns of it when it sends: a sign of life at the latest.
            earlier.send(Heartbeat(at=1.0, step=0, progress_at=1.0, pending=0, dropped=0))
            refused = lost(earlier)
            assert (refused.code, refused.retry) == ("superseded", False)
            later.deliver(steps(2, 1))
    assert first.store.reader.latest(RunId("run-1")).attempted == 2


def test_records_of_a_connection_that_was_superseded_are_not_stored(servers: tuple[Served, Served]) -> None:
    first, second = servers
    with first.trainer(hello()) as earlier, second.trainer(hello()) as later:
        with suppress(ConnectionClosed):
            earlier.send(layout(0), steps(1, 0))
        assert lost(earlier).code == "superseded"
        later.deliver(layout(0))
    assert first.store.reader.latest(RunId("run-1")).attempted == 0


def test_a_login_at_one_server_is_good_at_all_and_each_is_ready_by_itself(url: str) -> None:
    with serving(url, token=TOKEN) as first, serving(url, token=TOKEN) as second:
        cookie = first.get(f"/login?token={TOKEN}").headers["set-cookie"].partition(";")[0]
        for server in (first, second):
            assert server.get("/api/runs").status == 401
            assert server.get("/api/runs", cookie=cookie).status == 200
            until(server.is_ready)
            found = re.search(r'scalescope_server_info\{server="[^"]+:\d+"\} 1', metrics_with(server, cookie))
            assert found is not None


def metrics_with(server: Served, cookie: str) -> str:
    return server.get("/metrics", cookie=cookie).body.decode()


def test_two_processes_that_take_themselves_for_one_rank_do_not_fight_for_ever(
    servers: tuple[Served, Served], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = servers
    with linked(first.url, tmp_path / "a") as (earlier, some), linked(second.url, tmp_path / "b") as (later, others):

        def given_way() -> bool:
            # Who sends learns at once that its place is taken.
            feed(earlier, some)
            feed(later, others)
            return any("refuses this run: a later connection of the same run" in line for line in caplog.messages)

        until(given_way)
        until(lambda: sorted(link.stats().connected for link in (earlier, later)) == [False, True])


def test_a_trainer_whose_run_a_frozen_server_holds_keeps_its_connection_and_others_do_not_wait(
    servers: tuple[Served, Served],
) -> None:
    server, frozen = servers
    with server.trainer(hello("held")) as held, server.trainer(hello("free")) as free:
        held.deliver(layout(0))
        with frozen.store._writing.begin() as connection:
            Transaction(connection).hold(["held"])
            held.send(steps(1, 0))
            for number in range(20):
                free.deliver(steps(number, number))
            until(server.is_ready)
        held.deliver(steps(2, 1))
    assert server.store.reader.latest("held").attempted == 2


def test_a_server_that_is_older_than_its_database_is_not_ready_and_sends_trainers_away(url: str) -> None:
    with serving(url) as served, served.trainer(hello()) as trainer:
        trainer.deliver(layout(0))
        with served.store._writing.begin() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'm9999'")
        trainer.send(steps(1, 0))
        refused = lost(trainer)
        assert (refused.retry, "brought to revision m9999" in refused.message) == (True, True)
        until(lambda: "start the version that belongs to it" in str(served.get("/readyz").json()))
        assert served.get("/readyz").status == 503
        assert served.store.reader.latest("run-1").attempted == 0
