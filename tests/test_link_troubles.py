"""The link where the server is away, silent, refuses or comes back: nothing is lost, stored twice or waited for."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest
from scalescope import link as link_module
from scalescope.link import Link
from scalescope.outbox import Outbox
from scalescope.spool import SpoolFile

from tests.small_link import Source, feed, linked, settings, stored_steps, until
from tests.small_server import DEADLINE_S, Manner, Shelf, free_port, hello, serving

# Whoever waits for what never comes does so for longer than any deadline.
LONG_S = 5 * DEADLINE_S


@pytest.fixture
def patient_spill(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for in vain is waited for longer than a busy machine takes for anything."""
    monkeypatch.setattr(link_module, "SPILL_S", LONG_S)


@pytest.mark.usefixtures("patient_spill")
def test_a_server_that_goes_away_during_close_does_not_hold_it_up(tmp_path: Path) -> None:
    for round_number in range(20):
        shelf = Shelf()
        with serving(shelf) as server, linked(server.url, tmp_path / str(round_number)) as (link, source):
            feed(link, source, 5)
            until(lambda: link.stats().connected)
            killing = threading.Thread(target=server.kill)
            killing.start()
            began = time.monotonic()
            link.close("finished", "", timeout_s=0.01)
            assert time.monotonic() - began < DEADLINE_S
            killing.join()


def test_a_server_killed_and_restarted_loses_nothing_and_stores_nothing_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = Shelf()
    with serving(shelf) as first:
        port, url = first.port, first.url
        source = Source()
        link = Link(hello(), settings(url, tmp_path), source)
        link.start()
        feed(link, source, 20)
        shelf.until(lambda s: len(s.records) > 5)
    feed(link, source, 20)
    until(lambda: not link.stats().connected)
    feed(link, source, 20)
    with serving(shelf, port=port):
        feed(link, source, 20)
        assert link.close("finished", "")
    assert stored_steps(shelf) == list(range(80))
    assert shelf.ledger.ranges == ((0, 80),)
    lost, back = caplog.messages
    assert f"no connection to {url}" in lost
    assert f"{url} answers again" in back


def test_a_server_that_greets_and_hangs_up_at_each_record_is_one_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = Shelf()
    with serving(shelf, manner="hangs up") as server, linked(server.url, tmp_path) as (link, source):
        feed(link, source, 10)
        shelf.until(lambda s: len(s.hellos) > 4)
    trouble, left = caplog.messages
    assert f"no connection to {server.url}" in trouble
    assert "11 records were not delivered" in left


def test_a_server_that_comes_back_is_found(tmp_path: Path) -> None:
    shelf = Shelf()
    port = free_port()
    with linked(f"http://127.0.0.1:{port}", tmp_path) as (link, source):
        feed(link, source)
        until(lambda: link.stats().pending == 1)
        with serving(shelf, port=port):
            shelf.until(lambda s: len(s.records) == 1)


def test_what_an_earlier_connection_stored_is_not_sent_again(tmp_path: Path) -> None:
    shelf = Shelf()
    # It stores, and never says so: the next connection learns it from the welcome.
    with serving(shelf, manner="no acks") as first:
        port = first.port
        source = Source()
        link = Link(hello(), settings(first.url, tmp_path), source)
        link.start()
        feed(link, source, 10)
        shelf.until(lambda s: len(s.records) == 10)
    assert link.stats().acknowledged == 0
    with serving(shelf, port=port):
        assert link.close("finished", "")
    assert (shelf.duplicates, shelf.ledger.ranges) == (0, ((0, 10),))
    assert link.stats().sent == 11


@pytest.mark.usefixtures("patient_spill")
@pytest.mark.parametrize("manner", ["mute", "no acks"])
def test_a_server_that_never_answers_costs_neither_memory_nor_time(tmp_path: Path, manner: Manner) -> None:
    with serving(Shelf(), manner=manner) as server:
        outbox = Outbox(hello(), server.url, tmp_path, memory_bytes=300_000)
        with linked(server.url, tmp_path, outbox=outbox) as (link, source):
            for _ in range(100):
                feed(link, source, 1, size=10_000)
            until(lambda: link.stats().pending == 100)
            assert link.stats().spilled > 50
            assert outbox.memory <= 300_000
            began = time.monotonic()
            assert not link.close("finished", "", timeout_s=0.2)
            assert time.monotonic() - began < DEADLINE_S
    (path,) = tmp_path.iterdir()
    file = SpoolFile.open(path)
    assert file.remaining == 101
    file.close()


def test_dead_from_the_start_close_is_bounded_and_says_how_to_push(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with linked(url, tmp_path) as (link, source):
        feed(link, source, 10)
        began = time.monotonic()
        assert not link.close("finished", "", timeout_s=LONG_S)
        assert time.monotonic() - began < DEADLINE_S
    trouble, left = caplog.messages
    assert f"no connection to {url}" in trouble
    assert left.startswith(f"scalescope: 11 records were not delivered to {url}: kept in ")
    assert left.endswith(f"deliver them with: scalescope push {tmp_path}")
    (path,) = tmp_path.iterdir()
    file = SpoolFile.open(path)
    assert [frame.sequence for frame in file.waiting(-1)] == list(range(11))
    file.close()


def test_a_name_that_is_looked_up_for_ever_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    lookups: list[object] = []

    def hang(host: object, *_: object, **__: object) -> list[object]:
        lookups.append(host)
        over.wait(LONG_S)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    link = Link(hello(), settings("http://dashboard.example:8765", tmp_path), Source())
    link.start()
    until(lambda: bool(lookups))
    began = time.monotonic()
    assert not link.close("finished", "", timeout_s=LONG_S)
    assert time.monotonic() - began < DEADLINE_S
    over.set()
    assert lookups == ["dashboard.example"]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_refused_token_is_told_once_and_the_data_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf()
    with serving(shelf, token="right") as server, linked(server.url, tmp_path, token="wrong") as (link, source):
        feed(link, source, 10)
        until(lambda: bool(caplog.messages))
        feed(link, source, 10)
        assert not link.close("finished", "")
    refusal, left = caplog.messages
    assert "this token is not known here" in refusal
    assert "set SCALESCOPE_TOKEN" in refusal
    assert "21 records were not delivered" in left
    assert shelf.hellos == []


def test_the_token_is_shown_to_the_server(tmp_path: Path) -> None:
    shelf = Shelf()
    with serving(shelf, token="right") as server, linked(server.url, tmp_path, token="right") as (link, _):
        assert link.close("finished", "")
