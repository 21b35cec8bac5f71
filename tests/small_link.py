"""A link for tests, with a recorder that hands over what they put in."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scalescope.link import Link
from scalescope.outbox import Outbox
from scalescope.settings import Settings, read_settings
from scalescope.wire import Record, Steps

from tests.small_server import DEADLINE_S, Shelf, hello


@dataclass
class Source:
    """A recorder that hands over what a test puts in. ``drop`` stands for what it gave up itself."""

    waiting: deque[Record] = field(default_factory=deque)
    dropped: int = 0
    steps: int = 0

    def drain(self) -> list[Record]:
        return [self.waiting.popleft() for _ in range(len(self.waiting))]

    def progress(self) -> tuple[int | None, float | None]:
        return (self.steps - 1, 1.0) if self.steps else (None, None)

    def step(self, count: int = 1, size: int = 8) -> None:
        for _ in range(count):
            self.waiting.append(Steps(sequence=0, first=self.steps, count=1, at=bytes(size), columns={}))
            self.steps += 1


def settings(url: str, spool: Path, token: str | None = None) -> Settings:
    return read_settings({"SCALESCOPE_SPOOL": str(spool)}, url=url, token=token)


@contextmanager
def linked(
    url: str, spool: Path, token: str | None = None, outbox: Outbox | None = None
) -> Iterator[tuple[Link, Source]]:
    source = Source()
    link = Link(hello(), settings(url, spool, token), source, outbox=outbox)
    link.start()
    try:
        yield link, source
    finally:
        link.close("finished", "", timeout_s=0.0)
        # Its log lines belong to this test.
        until(lambda: not link.running)


def feed(link: Link, source: Source, count: int = 1, size: int = 8) -> None:
    source.step(count, size)
    link.wake()


def until(true: Callable[[], bool], within_s: float = DEADLINE_S) -> None:
    """Wait for what another thread brings about and nobody announces."""
    deadline = time.monotonic() + within_s
    never = threading.Event()
    while not true():
        assert time.monotonic() < deadline, "it never came about"
        never.wait(0.005)


def stored_steps(shelf: Shelf) -> list[int]:
    return [record.first for record in shelf.records if isinstance(record, Steps)]
