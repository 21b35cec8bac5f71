"""Several servers on one Postgres: from a rank's update to the page of each server, and what the death of one costs.

Four ranks are spread over the servers, each by the hook's own link; a page is open on each. Half-way the server that
rank 0 is with is killed, and a balancer sends whoever was with it to another. Everything is on one machine and shares
its clock; the database writes to the disk what it acknowledges.

    python -m benchmarks.servers [--servers 2] [--seconds 20] [--every 0.05]
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import signal
import statistics
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field

import numpy as np
from scalescope.link import Link
from scalescope.rows import column
from scalescope.settings import read_settings
from scalescope.wire import Record, Steps
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.errors import StoreError
from scalescope_server.store.records import RunId
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from benchmarks.serving import served
from tests.postgres import cluster
from tests.proxy import Proxy, between
from tests.serving import hello

RANKS = 4
RUN = RunId("spread")
PATIENCE_S = 30.0


@dataclass
class Rank:
    """What a recorder has of one rank; ``sent`` is when each of its updates was there to be fetched."""

    waiting: deque[Record] = field(default_factory=deque)
    dropped: int = 0
    sent: list[float] = field(default_factory=list)

    def drain(self) -> list[Record]:
        return [self.waiting.popleft() for _ in range(len(self.waiting))]

    def progress(self) -> tuple[int | None, float | None]:
        return (len(self.sent) - 1, self.sent[-1]) if self.sent else (None, None)

    def update(self) -> None:
        now, first = time.time(), np.zeros(1, np.int64)
        columns = {"scale": column(first, np.array([65536.0])), "skipped": column(first, np.array([0.0]))}
        at = np.array([now], "<f8").tobytes()
        self.waiting.append(Steps(sequence=0, first=len(self.sent), count=1, at=at, columns=columns))
        self.sent.append(now)


@dataclass
class Watch:
    """What somebody saw of the run: when, and how many updates there were. ``over`` ends it."""

    name: str
    over: threading.Event
    seen: list[tuple[float, int]] = field(default_factory=list)

    def note(self, updates: int) -> None:
        if not self.seen or updates > self.seen[-1][1]:
            self.seen.append((time.time(), updates))

    def page(self, balancer: Proxy) -> None:
        """As the page does: when its server is gone it connects again."""
        while not self.over.is_set():
            url = balancer.url.replace("http", "ws", 1)
            with suppress(OSError, WebSocketException), connect(f"{url}/api/live?run={RUN}") as socket:
                while not self.over.is_set():
                    with suppress(TimeoutError):
                        self.note(json.loads(socket.recv(timeout=0.2)).get("attempted", 0))
            self.over.wait(0.1)

    def judgements(self, store: Store) -> None:
        while not self.over.wait(0.01):
            with suppress(StoreError):
                self.note(store.reader.judgement(RUN)[0])

    def delays(self, sent: list[float], start: float, stop: float) -> list[float]:
        """Seconds from each update that was sent between the two moments until it was seen."""
        counts = [updates for _, updates in self.seen]
        places = [(at, bisect.bisect_right(counts, n)) for n, at in enumerate(sent) if start <= at < stop]
        return [self.seen[place][0] - at for at, place in places if place < len(counts)]

    def complete(self, updates: int) -> bool:
        return bool(self.seen) and self.seen[-1][1] == updates

    def line(self, what: str, sent: list[float], start: float, stop: float) -> str:
        found = sorted(self.delays(sent, start, stop))
        if not found:
            return f"{self.name:<18} {what:<12} nothing"
        p95 = found[int(0.95 * (len(found) - 1))]
        return (
            f"{self.name:<18} {what:<12} {len(found):>5} updates  median {1000 * statistics.median(found):7.1f} ms  "
            f"p95 {1000 * p95:7.1f} ms  longest {1000 * found[-1]:7.1f} ms"
        )


def train(balancers: list[Proxy], seconds: float, every_s: float, kill: Callable[[], None]) -> tuple[Rank, float]:
    """Let the ranks tell of updates for so long; rank 0, and when in the middle of it ``kill`` was called."""
    ranks = [Rank() for _ in range(RANKS)]
    with tempfile.TemporaryDirectory() as folder:
        links = []
        for number, rank in enumerate(ranks):
            settings = read_settings(
                {"SCALESCOPE_SPOOL": f"{folder}/{number}"}, url=balancers[number % len(balancers)].url
            )
            links.append(Link(hello(RUN, rank=number, world_size=RANKS), settings, rank))
            links[-1].start()
        began, killed_at = time.monotonic(), 0.0
        while (passed := time.monotonic() - began) < seconds:
            for rank, link in zip(ranks, links, strict=True):
                rank.update()
                link.wake()
            if not killed_at and passed > seconds / 2:
                killed_at = time.time()
                kill()
            time.sleep(every_s)
        delivered = [link.close("finished", "") for link in links]
    print(f"delivered whole: {delivered.count(True)} of {RANKS} ranks")
    return ranks[0], killed_at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=2, help="at least 2 (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--every", type=float, default=0.05, help="seconds between two updates of a rank")
    arguments = parser.parse_args()
    over = threading.Event()
    with ExitStack() as held:
        database = held.enter_context(cluster(durable=True))
        url = database.new(database.template)
        servers = [held.enter_context(served(url)) for _ in range(arguments.servers)]
        balancers = [held.enter_context(between(server.url)) for server in servers]
        store = held.enter_context(closing(open_store(url)))
        pages = [Watch(f"page of server {number}", over) for number in range(len(servers))]
        judge = Watch("judge", over)
        each = zip(pages, balancers, strict=True)
        threads = [threading.Thread(target=page.page, args=[balancer]) for page, balancer in each]
        threads.append(threading.Thread(target=judge.judgements, args=[store]))
        for thread in threads:
            thread.start()

        def kill() -> None:
            balancers[0].to = servers[1].url
            os.kill(servers[0].pid, signal.SIGKILL)

        rank, killed_at = train(balancers, arguments.seconds, arguments.every, kill)
        _wait(lambda: all(watch.complete(len(rank.sent)) for watch in (*pages, judge)))
        over.set()
        for thread in threads:
            thread.join()
    report([*pages, judge], rank.sent, killed_at)


def report(watches: list[Watch], sent: list[float], killed_at: float) -> None:
    for watch in watches:
        print(watch.line("both alive", sent, 0.0, killed_at - 1.0))
        print(watch.line("one killed", sent, killed_at - 1.0, sent[-1] + 1.0))
        print(f"{watch.name:<18} has seen {watch.seen[-1][1] if watch.seen else 0} of {len(sent)} updates")


def _wait(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not true() and time.monotonic() < ends:
        time.sleep(0.05)


if __name__ == "__main__":
    main()
