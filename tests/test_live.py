"""News for pages: the page's queue and the hub by themselves, then over real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import pytest
from scalescope_server.errors import UnavailableError
from scalescope_server.live import MAX_PAGES, Hub
from scalescope_server.news import MAX_RUNS_WAITING, News, Page, Refetch
from scalescope_server.store.delivery import Receipt
from scalescope_server.store.errors import NotFound, Unavailable
from scalescope_server.store.records import RunId, RunSummary
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.serving import DEADLINE_S, Served, bye, hello, layout, steps

Serve = Callable[..., AbstractContextManager[Served]]


def news(run: str = "r", attempted: int = 1) -> News:
    return News(
        run=run,
        state="running",
        step=attempted - 1,
        attempted=attempted,
        applied=attempted,
        skipped=0,
        scale=1.0,
        at=0.0,
        last_seen_at=0.0,
        findings={},
        worst=None,
    )


def receipt(run: str = "r", stop: int = 1, *, ended: bool = False) -> Receipt:
    return Receipt(RunId(run), 0, stop, 1, 0, (stop - 1, stop), 0, 0, ended)


class Summaries:
    """What the store would say, and how often it was asked."""

    def __init__(self) -> None:
        self.now: dict[str, RunSummary] = {}
        self.asked: list[str] = []
        self.failures: list[Exception] = []

    def put(self, run: str = "r", **changes: Any) -> None:
        fields: dict[str, Any] = {
            "project": "p",
            "name": run,
            "state": "running",
            "tags": [],
            "started_at": 0.0,
            "last_seen_at": 0.0,
            "attempted": 1,
            "applied": 1,
            "skipped": 0,
            "last_step": 0,
            "scale": 2.0,
            "findings": {},
            "worst": None,
            "firing": 0,
            "sparkline": [],
        }
        self.now[run] = RunSummary(id=run, **(fields | changes))

    async def latest(self, run: RunId) -> RunSummary:
        self.asked.append(run)
        if self.failures:
            raise self.failures.pop()
        if run not in self.now:
            raise NotFound(run)
        return self.now[run]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def taken(page: Page) -> News:
    told = await page.take(DEADLINE_S)
    assert isinstance(told, News)
    return told


async def test_a_page_holds_only_the_newest_of_a_run() -> None:
    page = Page(None)
    for attempted in range(1, 100):
        page.put(news(attempted=attempted))
    assert (await taken(page)).attempted == 99
    assert await page.take(0.001) is None


async def test_runs_are_told_in_the_order_in_which_they_changed() -> None:
    page = Page(None)
    for run in ("a", "b", "a", "c"):
        page.put(news(run))
    assert [(await taken(page)).run for _ in range(3)] == ["a", "b", "c"]


async def test_a_page_that_cannot_keep_up_is_told_once_to_fetch_anew() -> None:
    page = Page(None)
    for number in range(MAX_RUNS_WAITING * 3):
        page.put(news(f"r{number}"))
    assert await page.take(DEADLINE_S) == Refetch()
    page.put(news("after"))
    assert (await taken(page)).run == "after"
    assert await page.take(0.001) is None


async def test_news_goes_only_to_the_pages_that_watch_the_run() -> None:
    summaries = Summaries()
    summaries.put("a")
    summaries.put("b")
    hub = Hub(summaries.latest, silent_after_s=60, clock=Clock())
    running = asyncio.create_task(hub.run())
    every, one = hub.open(None), hub.open(RunId("b"))
    hub.publish(receipt("a"))
    hub.publish(receipt("b"))
    assert {(await taken(every)).run for _ in range(2)} == {"a", "b"}
    assert (await taken(one)).run == "b"
    running.cancel()


async def test_nothing_is_read_while_no_page_is_open() -> None:
    summaries = Summaries()
    summaries.put("a")
    summaries.put("b")
    hub = Hub(summaries.latest, silent_after_s=60, clock=Clock())
    running = asyncio.create_task(hub.run())
    hub.publish(receipt("a"))
    page = hub.open(RunId("b"))
    await taken(page)
    assert summaries.asked == ["b"]
    running.cancel()


async def test_a_run_that_goes_silent_is_news() -> None:
    clock, summaries = Clock(), Summaries()
    hub = Hub(summaries.latest, silent_after_s=60, clock=clock)
    running = asyncio.create_task(hub.run())
    page = hub.open(None)
    summaries.put(last_seen_at=0.0)
    hub.publish(receipt())
    assert (await taken(page)).state == "running"
    clock.now = 60.0
    hub.sweep()
    clock.now = 60.5
    summaries.put(state="silent")
    hub.sweep()
    assert (await taken(page)).state == "silent"
    summaries.put(state="running")
    hub.seen(RunId("r"), clock.now)
    assert (await taken(page)).state == "running"
    running.cancel()


async def test_a_run_that_goes_silent_after_the_clock_was_put_back_is_news() -> None:
    clock, summaries = Clock(), Summaries()
    clock.now = 86_400.0
    hub = Hub(summaries.latest, silent_after_s=60, clock=clock)
    running = asyncio.create_task(hub.run())
    page = hub.open(None)
    summaries.put(last_seen_at=0.0)
    hub.publish(receipt())
    assert (await taken(page)).state == "running"
    clock.now = 0.0
    hub.seen(RunId("r"), clock.now)
    clock.now = 60.5
    summaries.put(state="silent")
    hub.sweep()
    assert (await taken(page)).state == "silent"
    running.cancel()


async def test_a_run_that_was_silent_long_ago_is_noticed_once_a_page_looks_at_it() -> None:
    clock, summaries = Clock(), Summaries()
    clock.now = 1000.0
    summaries.put(last_seen_at=950.0)
    hub = Hub(summaries.latest, silent_after_s=60, clock=clock)
    running = asyncio.create_task(hub.run())
    page = hub.open(RunId("r"))
    await taken(page)
    clock.now = 1011.0
    summaries.put(state="silent", last_seen_at=950.0)
    hub.sweep()
    assert (await taken(page)).state == "silent"
    running.cancel()


async def test_a_run_that_ended_is_not_swept() -> None:
    clock, summaries = Clock(), Summaries()
    hub = Hub(summaries.latest, silent_after_s=60, clock=clock)
    running = asyncio.create_task(hub.run())
    page = hub.open(None)
    summaries.put(state="finished")
    hub.publish(receipt(ended=True))
    assert (await taken(page)).state == "finished"
    clock.now = 1000.0
    hub.sweep()
    assert await page.take(0.2) is None
    running.cancel()


async def test_news_that_the_database_would_not_give_comes_later_and_is_told_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    summaries = Summaries()
    summaries.put()
    summaries.failures = [Unavailable("locked"), UnavailableError("too many are waiting")]
    hub = Hub(summaries.latest, silent_after_s=60, clock=Clock())
    running = asyncio.create_task(hub.run())
    page = hub.open(RunId("r"))
    assert (await taken(page)).run == "r"
    assert len(summaries.asked) == 3
    assert caplog.messages == ["no news for pages, of run 'r' first: too many are waiting"]
    running.cancel()


async def test_a_run_that_cannot_be_read_by_a_mistake_keeps_no_other_from_being_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    summaries = Summaries()
    summaries.put("other")
    summaries.failures = [KeyError("a mistake")]
    hub = Hub(summaries.latest, silent_after_s=60, clock=Clock())
    running = asyncio.create_task(hub.run())
    page = hub.open(None)
    for run in ("odd", "other"):
        hub.publish(receipt(run))
    assert (await taken(page)).run == "other"
    assert caplog.messages == ["no news for pages of run 'odd'"]
    running.cancel()


async def test_the_step_is_the_last_stored_one_even_where_some_are_missing() -> None:
    summaries = Summaries()
    summaries.put(attempted=5, last_step=7)
    hub = Hub(summaries.latest, silent_after_s=60, clock=Clock())
    running = asyncio.create_task(hub.run())
    page = hub.open(None)
    # Another rank is ahead of the one whose updates the page shows.
    hub.publish(Receipt(RunId("r"), 1, 0, 1, 0, (50, 50), 1, 0, ended=False))
    assert (await taken(page)).step == 7
    running.cancel()


async def test_a_change_from_another_thread_is_told() -> None:
    summaries = Summaries()
    hub = Hub(summaries.latest, silent_after_s=60, clock=Clock())
    running = asyncio.create_task(hub.run())
    page = hub.open(None)
    summaries.put(findings={"warning": 1}, worst="warning")
    await asyncio.sleep(0)
    await asyncio.to_thread(hub.changed, RunId("r"))
    assert (await taken(page)).worst == "warning"
    running.cancel()


async def test_a_beat_tells_the_last_sign_of_life_of_what_the_page_watches() -> None:
    hub = Hub(Summaries().latest, silent_after_s=60, clock=Clock())
    every, one = hub.open(None), hub.open(RunId("a"))
    hub.seen(RunId("b"), 7.0)
    hub.seen(RunId("a"), 5.0)
    assert (hub.beat(every).last_seen_at, hub.beat(one).last_seen_at) == (7.0, 5.0)


async def test_the_number_of_pages_is_bounded() -> None:
    hub = Hub(Summaries().latest, silent_after_s=60, clock=Clock())
    pages = [hub.open(None) for _ in range(MAX_PAGES)]
    with pytest.raises(UnavailableError):
        hub.open(None)
    hub.close(pages[0])
    hub.open(None)


async def test_a_scale_that_is_not_finite_is_text() -> None:
    summaries = Summaries()
    summaries.put(scale=float("inf"))
    hub = Hub(summaries.latest, silent_after_s=60, clock=Clock())
    running = asyncio.create_task(hub.run())
    told = await taken(hub.open(RunId("r")))
    assert msgspec.json.decode(msgspec.json.encode(told))["scale"] == "inf"
    running.cancel()


def test_an_open_page_sees_updates_arrive_and_the_run_end(served: Served) -> None:
    with served.page("run-1") as page, served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), steps(1, 0, count=4, skipped=[0.0, 1.0, 0.0, 0.0]))
        told = page.until(lambda message: message["type"] == "news" and message["attempted"] == 4)
        assert (told["run"], told["step"], told["applied"], told["skipped"]) == ("run-1", 3, 3, 1)
        assert (told["state"], told["scale"]) == ("running", 65536.0)
        trainer.deliver(bye(2))
        page.until(lambda message: message.get("state") == "finished")


def test_a_page_gets_at_most_twenty_messages_a_second_and_the_last_is_the_newest(served: Served) -> None:
    with served.page() as page, served.trainer(hello()) as trainer:
        began = time.monotonic()
        for number in range(100):
            trainer.deliver(steps(number, number))
        page.until(lambda message: message.get("attempted") == 100)
        seconds = time.monotonic() - began
    assert sum(message["type"] == "news" for message in page.told) <= 20 * seconds + 1


def test_a_page_hears_a_beat_and_that_a_run_fell_silent(serve: Serve) -> None:
    clock = Clock()
    with serve(beat_every_s=0.05, silent_after_s=60.0, clock=clock) as served, served.page("run-1") as page:
        assert page.next() == {"type": "beat", "now": 0.0, "last_seen_at": None}
        with served.trainer(hello()) as trainer:
            trainer.deliver(layout(0), steps(1, 0))
        page.until(lambda message: message.get("state") == "running")
        clock.now = 61.0
        page.until(lambda message: message.get("state") == "silent")
        beat = page.until(lambda message: message["type"] == "beat")
        assert beat["last_seen_at"] is not None


def test_a_trainer_that_does_not_come_back_after_a_restart_is_noticed(serve: Serve) -> None:
    with serve() as served, served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), steps(1, 0))
    with serve(silent_after_s=1.0) as served, served.page() as page:
        page.until(lambda message: (message.get("run"), message.get("state")) == ("run-1", "silent"))


def test_a_page_that_leaves_is_forgotten(served: Served) -> None:
    with served.page():
        assert "scalescope_pages 1" in served.get("/metrics").body.decode()
    ends = time.monotonic() + DEADLINE_S
    while "scalescope_pages 0" not in served.get("/metrics").body.decode():
        assert time.monotonic() < ends, "the page was never forgotten"


@pytest.mark.parametrize("run", ["x" * 65, "x%0aforged%20line", "..", "%F0%9F%92%A9"])
def test_an_id_that_can_be_none_is_refused_in_a_sentence(shared: Served, run: str) -> None:
    with pytest.raises(InvalidStatus) as caught, connect(f"{shared.ws}/api/live?run={run}"):
        pass
    assert caught.value.response.status_code == 404
    assert b"there is no run" in (caught.value.response.body or b"")
