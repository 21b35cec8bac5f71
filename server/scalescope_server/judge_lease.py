"""The lease on the run in hand, kept while its pass lasts: one that has much to catch up with takes longer than a term.

Otherwise two servers would take it from one another for ever, and neither come to commit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from scalescope_server.store.leases import TERM_S
from scalescope_server.store.records import RunId
from scalescope_server.store.writer import Writer

EVERY_S = TERM_S / 3
# No pass takes that long: whoever hangs is to be succeeded.
MOST_RENEWALS = 300


@dataclass(slots=True, eq=False)
class _Hand:
    run: RunId
    fence: int
    renewals: int = 0


class Renewal:
    """On a thread of its own, which writes only for a pass that has lasted for as long as it looks again."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._hand: _Hand | None = None
        self._seen: _Hand | None = None
        self._asked: Future[bool] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scalescope-lease", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End, whether it was started or not."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def in_hand(self) -> RunId | None:
        """The run whose lease is kept."""
        hand = self._hand
        return None if hand is None else hand.run

    @contextmanager
    def of(self, run: RunId, fence: int) -> Iterator[None]:
        """Keep the lease that has this fence, as long as nobody else has taken it."""
        self._hand = _Hand(run, fence)
        try:
            yield
        finally:
            self._hand = None

    def tend(self) -> Future[bool] | None:
        """Renew it if it was in hand the last time, too; the answer to come."""
        hand, seen = self._hand, self._seen
        self._seen = hand
        if hand is None or hand is not seen or hand.renewals == MOST_RENEWALS:
            return None
        if self._asked is not None and not self._asked.done():
            return None
        hand.renewals += 1
        self._asked = self._writer.renew(hand.run, hand.fence)
        return self._asked

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self.tend()
