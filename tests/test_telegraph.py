"""Telegrams between two servers over a real Postgres, which goes away and comes back."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from scalescope_server.store.engine import backend_of
from scalescope_server.store.records import RunId
from scalescope_server.store.telegrams import Telegram, Telegraph
from scalescope_server.store.telegraph import CHANNEL

from tests.postgres import Cluster
from tests.serving import DEADLINE_S
from tests.small_link import until

A, B = RunId("a"), RunId("b")


@dataclass
class Station:
    """One server's end, and what it hears."""

    telegraph: Telegraph
    heard: queue.Queue[Telegram] = field(default_factory=queue.Queue)

    def take(self, telegrams: Sequence[Telegram]) -> None:
        for telegram in telegrams:
            self.heard.put(telegram)

    def next(self) -> Telegram:
        return self.heard.get(timeout=DEADLINE_S)


@contextmanager
def station(url: str) -> Iterator[Station]:
    opened = Station(backend_of(url).telegraph())
    opened.telegraph.start(opened.take)
    until(lambda: opened.telegraph.listening)
    try:
        yield opened
    finally:
        opened.telegraph.stop()


def test_the_others_hear_what_one_tells_and_it_does_not_hear_itself(postgres: Cluster) -> None:
    url = postgres.new()
    with station(url) as one, station(url) as two, station(postgres.new()) as elsewhere:
        one.telegraph.tell(Telegram(A, 1.5))
        assert two.next() == Telegram(A, 1.5)
        two.telegraph.tell(Telegram(B, gone=True))
        assert one.next() == Telegram(B, gone=True)
        assert two.heard.empty()
        assert elsewhere.heard.empty()


def test_a_storm_of_news_is_a_few_telegrams_and_the_last_is_the_newest(postgres: Cluster) -> None:
    url = postgres.new()
    with station(url) as one, station(url) as two:
        for number in range(10_000):
            one.telegraph.tell(Telegram(A, float(number)))
        told = 0
        while two.next().seen_at != 9_999.0:
            told += 1
        assert told < 100


def test_what_is_not_ours_is_not_heard(postgres: Cluster) -> None:
    url = postgres.new()
    with station(url) as one, psycopg.connect(url, autocommit=True) as stranger:
        for text in ("", "nonsense", '{"run": 1}', '["a", 2.0, false, "of a newer version"]'):
            stranger.execute("SELECT pg_notify(%s, %s)", [CHANNEL, text])
        assert one.next() == Telegram(A, 2.0)


def test_what_could_not_be_told_is_told_on_the_next_connection(
    postgres: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgres.new()
    with station(url) as one, station(url) as two, psycopg.connect(url, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        until(lambda: len(caplog.messages) >= 2)
        one.telegraph.tell(Telegram(A, 1.0))
        one.telegraph.tell(Telegram(A, 2.0))
        until(lambda: two.telegraph.listening)
        one.telegraph.tell(Telegram(B, 3.0))
        heard = [two.next()]
        while heard[-1].run != B:
            heard.append(two.next())
    # Whoever listens again later may miss what the other tells before: it looks by itself.
    assert [told.seen_at for told in heard if told.run == A][-1:] in ([], [2.0])
    assert all(line.startswith("other servers are asked every second") for line in caplog.messages)


def test_of_several_hosts_the_one_that_answers_is_heard(postgres: Cluster, tmp_path: Path) -> None:
    with station(f"{postgres.new()}&host={tmp_path}:5433") as one:
        assert one.telegraph.listening
