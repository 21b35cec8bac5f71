"""Collecting over real sockets: what is dropped costs itself alone and is put on record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scalescope.collector import Collector
from scalescope.notices import Notices
from scalescope.outbox import Outbox
from scalescope.wire import Bye, Event, decode_from_trainer

from tests.small_link import Source, feed, linked, stored_steps, until
from tests.small_server import Shelf, free_port, hello, serving


def test_dropped_records_are_put_on_record_before_the_end(tmp_path: Path) -> None:
    shelf = Shelf()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    outbox = Outbox(hello(), url, tmp_path, memory_bytes=20_000, disk_bytes=0)
    with linked(url, tmp_path, outbox=outbox) as (link, source):
        feed(link, source, 50, size=1000)
        until(lambda: link.stats().dropped > 0)
        with serving(shelf, port=port):
            shelf.until(lambda s: any(isinstance(record, Event) for record in s.records))
            assert link.close("finished", "")
    dropped = link.stats().dropped
    # One, or on a busy machine more.
    events = [record for record in shelf.records if isinstance(record, Event)]
    told = [json.loads(event.data) for event in events]
    assert {event.kind for event in events} == {"dropped"}
    assert [sum(each[name] for each in told) for name in ("messages", "steps")] == [dropped, dropped]
    # Each event takes its room from the oldest, which may be on its way to the server already.
    assert dropped - len(events) <= shelf.ledger.missing <= dropped


def test_what_the_end_itself_drops_is_told_before_it(tmp_path: Path) -> None:
    outbox = Outbox(hello(), "http://a", tmp_path, memory_bytes=4096, disk_bytes=0)
    source = Source()
    collector = Collector(source, outbox, Notices("http://a"), lambda: 0.0)
    source.step(50, size=100)
    collector.collect()
    collector.say_goodbye(Bye(sequence=0, at=0.0, reason="crashed", detail="x" * 300))
    *_, event, bye = (decode_from_trainer(frame.data) for frame in outbox.waiting(-1))
    assert isinstance(event, Event)
    assert isinstance(bye, Bye)
    assert json.loads(event.data)["messages"] == outbox.dropped.total()


def test_a_record_too_large_for_any_server_is_dropped_and_the_rest_delivered(tmp_path: Path) -> None:
    shelf = Shelf()
    with serving(shelf) as server, linked(server.url, tmp_path) as (link, source):
        feed(link, source, 1, size=17 * 2**20)
        feed(link, source, 1)
        assert link.close("finished", "")
    assert stored_steps(shelf) == [1]
    assert link.stats().dropped == 1


def test_a_record_that_has_no_encoding_is_dropped_and_the_rest_delivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = Shelf()
    with serving(shelf) as server, linked(server.url, tmp_path) as (link, source):
        for _ in range(2):
            source.waiting.append(Event(sequence=0, step=0, at=0.0, kind="skip", data="\ud800"))
        feed(link, source, 1)
        assert link.close("finished", "")
    assert stored_steps(shelf) == [0]
    assert link.stats().dropped == 2
    (event,) = [record for record in shelf.records if isinstance(record, Event)]
    assert event.data == '{"messages": 2, "event": 2}'
    assert shelf.ledger.missing == 2
    assert len(caplog.messages) == 1
