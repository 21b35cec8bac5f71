"""The link over real sockets: each record is stored once and training never waits."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from scalescope import link as link_module
from scalescope.agreement import Agreement, Meeting
from scalescope.link import Link
from scalescope.outbox import Outbox
from scalescope.session import WINDOW_BYTES
from scalescope.spool import SpoolFile
from scalescope.wire import Bye, Record, encode
from torch._C._distributed_c10d import HashStore

from tests.small_link import Source, feed, linked, settings, stored_steps, until
from tests.small_server import DEADLINE_S, Shelf, free_port, hello, serving


def test_every_record_arrives_once_in_order_and_close_waits_for_the_last(tmp_path: Path) -> None:
    shelf = Shelf()
    with serving(shelf) as server, linked(server.url, tmp_path) as (link, source):
        for _ in range(50):
            feed(link, source)
        assert link.close("finished", "")
        assert stored_steps(shelf) == list(range(50))
        assert isinstance(shelf.records[-1], Bye)
        assert shelf.ledger.ranges == ((0, 50),)
        stats = link.stats()
    assert (stats.acknowledged, stats.pending, stats.dropped, stats.spilled) == (51, 0, 0, 0)
    assert list(tmp_path.iterdir()) == []


def test_more_than_may_be_on_its_way_at_once_arrives_as_it_is_acknowledged(tmp_path: Path) -> None:
    shelf = Shelf()
    with serving(shelf) as server, linked(server.url, tmp_path) as (link, source):
        feed(link, source, 3 * WINDOW_BYTES // 2**18, size=2**18)
        assert link.close("finished", "")
    assert stored_steps(shelf) == list(range(3 * WINDOW_BYTES // 2**18))


def test_a_crash_is_told_with_its_detail(tmp_path: Path) -> None:
    shelf = Shelf()
    with serving(shelf) as server, linked(server.url, tmp_path) as (link, _):
        assert link.close("crashed", "ValueError: x" + "y" * 100_000)
    bye = shelf.records[-1]
    assert isinstance(bye, Bye)
    assert bye.reason == "crashed"
    assert bye.detail.startswith("ValueError: x")


def test_closing_again_gives_the_same_answer(tmp_path: Path) -> None:
    with serving(Shelf()) as server, linked(server.url, tmp_path) as (link, _):
        assert link.close("finished", "")
        assert link.close("crashed", "later")


def test_news_arrives_without_a_further_call(tmp_path: Path) -> None:
    shelf = Shelf()
    with serving(shelf) as server, linked(server.url, tmp_path) as (link, source):
        until(lambda: link.stats().connected)
        feed(link, source)
        shelf.until(lambda s: len(s.records) == 1)


def test_records_that_become_drainable_unannounced_are_found(tmp_path: Path) -> None:
    shelf = Shelf()
    with serving(shelf) as server, linked(server.url, tmp_path) as (_, source):
        source.step()
        shelf.until(lambda s: len(s.records) == 1)


def test_a_fork_leaves_the_file_to_the_parent(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    outbox = Outbox(hello(), url, tmp_path, memory_bytes=1)
    with linked(url, tmp_path, outbox=outbox) as (link, source):
        feed(link, source)
        until(lambda: link.stats().spilled == 1)
        over = os.pipe()
        child = os.fork()
        if child == 0:
            link.release()
            os.close(over[1])
            os.read(over[0], 1)
            os._exit(0)
        link.close("finished", "")
    try:
        (path,) = tmp_path.iterdir()
        SpoolFile.open(path).close()
    finally:
        os.close(over[1])
        os.waitpid(child, 0)


def test_heartbeats_tell_the_loops_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalescope.connection.HEARTBEAT_S", 0.01)
    shelf = Shelf()
    with serving(shelf) as server, linked(server.url, tmp_path) as (link, source):
        source.dropped = 3
        feed(link, source, 5)
        shelf.until(lambda s: any(beat.step == 4 and beat.pending == 0 for beat in s.heartbeats))
    assert shelf.heartbeats[-1].dropped == 3


def test_heartbeats_tell_what_the_link_itself_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalescope.connection.HEARTBEAT_S", 0.01)
    shelf = Shelf()
    with serving(shelf) as server, linked(server.url, tmp_path) as (link, source):
        feed(link, source, 3, size=1000)
        shelf.until(lambda s: len(s.heartbeats) > 1 and s.heartbeats[-1].sent_bytes > 3000)
        first, last = shelf.heartbeats[0], shelf.heartbeats[-1]
        assert 0 < first.sent_bytes < last.sent_bytes
        assert first.thread_cpu_s is not None
        assert last.thread_cpu_s is not None
        assert 0 < first.thread_cpu_s < last.thread_cpu_s < DEADLINE_S
        assert link.close("finished", "")
        stats = link.stats()
    assert stats.sent_bytes > last.sent_bytes
    assert stats.thread_cpu_s is not None
    assert stats.thread_cpu_s > last.thread_cpu_s


def test_the_last_heartbeat_tells_what_the_link_took_in_all(tmp_path: Path) -> None:
    shelf = Shelf()
    with serving(shelf) as server, linked(server.url, tmp_path) as (link, source):
        feed(link, source, 3, size=1000)
        assert link.close("finished", "")
        shelf.until(lambda s: s.heartbeats[-1].step == 2 and s.heartbeats[-1].pending == 0)
        last = shelf.heartbeats[-1]
        assert last.sent_bytes + len(encode(last)) == link.stats().sent_bytes


def test_what_ranks_could_not_deliver_is_kept_under_the_run_that_they_agreed_upon(tmp_path: Path) -> None:
    store = HashStore()
    meeting = Meeting(lambda: True, lambda: store)
    chosen = settings(f"http://127.0.0.1:{free_port()}", tmp_path)
    links = [
        Link(hello("run", f"segment-{rank}", rank), chosen, source, agreement=Agreement(1, meeting))
        for rank, source in ((1, Source()), (0, Source()))
    ]
    for link in links:
        link.start()
    until(lambda: all(link.run_id for link in links))
    for link in links:
        assert not link.close("finished", "")
    kept = sorted(path.name.rpartition("_")[0] for path in tmp_path.iterdir())
    assert kept == ["run_segment-0_0", "run_segment-0_1"]


def test_a_rank_that_learns_no_run_keeps_its_records_under_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = HashStore()
    shelf = Shelf()
    with serving(shelf) as server:
        agreement = Agreement(1, Meeting(lambda: True, lambda: store))
        link = Link(hello("mine", "segment", 1), settings(server.url, tmp_path), Source(), agreement=agreement)
        link.start()
        assert link.run_id == ""
        assert link.close("finished", "")
    assert link.run_id == "mine"
    assert [greeting.run for greeting in shelf.hellos] == ["mine"]
    assert "recorded apart" in caplog.text


def test_waking_takes_a_few_microseconds(tmp_path: Path) -> None:
    with serving(Shelf()) as server, linked(server.url, tmp_path) as (link, source):
        until(lambda: link.stats().connected)
        costs = []
        for _ in range(2000):
            source.step()
            began = time.perf_counter()
            link.wake()
            costs.append(time.perf_counter() - began)
    assert sorted(costs)[1000] < 20e-6


def test_a_forked_child_neither_sends_nor_waits(tmp_path: Path) -> None:
    shelf = Shelf()
    with serving(shelf) as server, linked(server.url, tmp_path) as (link, source):
        until(lambda: link.stats().connected)
        child = os.fork()
        if child == 0:
            feed(link, source, 5)
            os._exit(1 if link.close("finished", "") else 0)
        assert os.waitpid(child, 0) == (child, 0)
        feed(link, source, 5)
        assert link.close("finished", "")
    assert stored_steps(shelf) == list(range(5))


def test_a_recorder_that_fails_stops_the_link_and_not_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Source):
        def drain(self) -> list[Record]:
            raise KeyError("lost")

    with serving(Shelf()) as server:
        link = Link(hello(), settings(server.url, tmp_path), Broken())
        link.start()
        until(lambda: bool(caplog.messages))
        link.wake()
        assert not link.close("finished", "")
    assert caplog.messages == ["scalescope: recording has stopped: KeyError('lost'); the training goes on"]


def test_an_end_that_could_not_be_told_in_time_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "SPILL_S", 0.05)
    asked, answer = threading.Event(), threading.Event()

    class Hanging(Source):
        """Reads from a device that does not answer."""

        def drain(self) -> list[Record]:
            asked.set()
            answer.wait(20)
            return super().drain()

    shelf = Shelf()
    with serving(shelf) as server:
        link = Link(hello(), settings(server.url, tmp_path), Hanging())
        link.start()
        assert asked.wait(20)
        for _ in range(2):
            assert not link.close("finished", "", timeout_s=0.05)
        (line,) = caplog.messages
        assert line.startswith(f"scalescope: the end of this training was not delivered to {server.url} within 0.1 s")
        assert line.endswith("the server will show the run as silent, since it knows of no end")
        answer.set()
        until(lambda: not link.running)


def test_closing_before_the_thread_has_run_still_delivers(tmp_path: Path) -> None:
    shelf = Shelf()
    with serving(shelf) as server:
        source = Source()
        source.step(3)
        link = Link(hello(), settings(server.url, tmp_path), source)
        link.start()
        assert link.close("finished", "")
    assert stored_steps(shelf) == [0, 1, 2]


def test_closing_a_link_that_never_started_does_nothing(tmp_path: Path) -> None:
    link = Link(hello(), settings("http://127.0.0.1:1", tmp_path), Source())
    link.wake()
    assert not link.close("finished", "")
    assert list(tmp_path.iterdir()) == []
