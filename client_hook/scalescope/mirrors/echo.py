"""The thread that echoes a run to its mirrors: neither the training's, nor the one that talks to the server.

The link's thread hands over what it drains, which is bounded: the oldest goes first, and is counted. Once a second
what came is read and echoed, at most ten updates of it. A mirror that fails, as one does whose run was finished, is
told of in one log line; one that fails again and again is left alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from operator import methodcaller

from scalescope.collector import Source
from scalescope.mirrors.findings import News, ask
from scalescope.mirrors.mirror import Mirror
from scalescope.mirrors.series import SeriesReader
from scalescope.settings import Settings
from scalescope.wire import Layout, Record, Sample, Steps

TICK_S = 1.0
POINTS_PER_TICK = 10
# How often findings are asked for; after an answer that failed ever less often.
FINDINGS_S = 5.0
MAX_FINDINGS_S = 60.0
# At the end: how long the server is given to judge what came last, and how long all of it may take.
JUDGED_S = 0.5
CLOSE_S = 2.0
MAX_BYTES = 16 * 1024 * 1024
# A mirror is left alone after so many failures in a row.
_PATIENCE = 5

logger = logging.getLogger("scalescope")


class Echo:
    """Echoes to ``mirrors`` what it takes, and the findings of the run whose id ``run`` tells ("": not known).

    It comes to its end when it is closed, or when ``goes_on`` says that nothing is sent any more.
    """

    def __init__(
        self, mirrors: Sequence[Mirror], settings: Settings, run: Callable[[], str], goes_on: Callable[[], bool]
    ) -> None:
        self.left_out = 0
        self._mirrors = [_Guarded(mirror) for mirror in mirrors]
        self._settings = settings
        self._run = run
        self._goes_on = goes_on
        self._lock = threading.Lock()
        self._waiting: deque[Record] = deque()
        self._bytes = 0
        self._reader = SeriesReader()
        self._news = News()
        self._ask_every_s = FINDINGS_S
        self._ask_at = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="scalescope-mirror", daemon=True)

    def start(self) -> None:
        """Start the thread. A process that can have no more threads is told so in a log line."""
        try:
            self._thread.start()
        except RuntimeError as error:
            logger.warning("scalescope: nothing is mirrored: %s", error)

    def take(self, records: Sequence[Record]) -> None:
        """Take what is sent. From any thread; never a wait on anything slow."""
        with self._lock:
            for record in records:
                if isinstance(record, Layout | Steps | Sample):
                    self._waiting.append(record)
                    self._bytes += _size(record)
            while self._bytes > MAX_BYTES:
                self._bytes -= _size(self._waiting.popleft())
                self.left_out += 1

    def close(self) -> None:
        """Echo what is left: at most two seconds of waiting. Again: nothing."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)

    def _work(self) -> None:
        while not self._closing.wait(TICK_S) and self._goes_on():
            self._echo_points()
            if time.monotonic() >= self._ask_at:
                self._echo_findings()
                self._ask_at = time.monotonic() + self._ask_every_s
        self._echo_points()
        if self._echo_findings():
            time.sleep(JUDGED_S)
            self._echo_findings(last=True)

    def _echo_points(self) -> None:
        with self._lock:
            records, self._bytes = list(self._waiting), 0
            self._waiting.clear()
        points = self._reader.read(records, most=POINTS_PER_TICK)
        if points:
            for mirror in self._mirrors:
                mirror.call(methodcaller("scalars", points))

    def _echo_findings(self, *, last: bool = False) -> bool:
        """Whether the server answered."""
        run = self._run()
        if not run:
            return False
        try:
            found = ask(self._settings.url, self._settings.token, run)
        except OSError:
            # The link tells of a server that is away.
            self._ask_every_s = min(2 * self._ask_every_s, MAX_FINDINGS_S)
            return False
        self._ask_every_s = FINDINGS_S
        for finding in self._news.of(found, last=last):
            for mirror in self._mirrors:
                mirror.call(methodcaller("finding", finding))
        return True


class Echoed:
    """A source of records, which are echoed as they are drained."""

    def __init__(self, source: Source, echo: Echo) -> None:
        self._source = source
        self._echo = echo

    @property
    def dropped(self) -> int:
        return self._source.dropped

    def drain(self) -> list[Record]:
        records = self._source.drain()
        self._echo.take(records)
        return records

    def progress(self) -> tuple[int | None, float | None]:
        return self._source.progress()


class _Guarded:
    """A mirror whose failures stay here."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._told = False
        self._failures = 0

    def call(self, show: Callable[[Mirror], None]) -> None:
        if self._failures >= _PATIENCE:
            return
        try:
            show(self._mirror)
            self._failures = 0
        except Exception as error:  # noqa: BLE001 - another library's object, or the user's own
            self._failures += 1
            if not self._told:
                self._told = True
                logger.warning(
                    "scalescope: mirroring to %s failed: %r; the training goes on and is recorded",
                    type(self._mirror).__name__,
                    error,
                )


def _size(record: Record) -> int:
    if isinstance(record, Sample):
        return len(record.table.body)
    columns = record.columns.values() if isinstance(record, Steps) else ()
    return sum(len(column.rows) + len(column.values) for column in columns)
