"""What a server does to its database by itself: it erases deleted runs, and prunes what is old.

A piece at a time, each some ten milliseconds of the writer's, with a rest after it: what trainers send goes first.
Where it ends, by a restart or an error, it goes on; several servers that do it at once do it once.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from scalescope_server.store.engine import Store
from scalescope_server.store.errors import NotFound, StoreError
from scalescope_server.store.pruning_reader import Prunable

# How often it looks for what has become old.
LOOK_EVERY_S = 3600.0
# After a failure: the database is locked, full or gone.
RETRY_S = 30.0
# How much longer than a piece took it rests: a quarter of the writer's time at most.
REST = 3.0
MIN_REST_S = 0.01

logger = logging.getLogger("scalescope.server")

Result = TypeVar("Result")


def rest_after(took_s: float) -> float:
    """How long to leave the database to others after a piece of work that took so long."""
    return max(REST * took_s, MIN_REST_S)


class Upkeep:
    """Keeps one store, on a thread of its own.

    ``prune_older_than_s``: None keeps everything. ``clock`` gives seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        *,
        prune_older_than_s: float | None = None,
        clock: Callable[[], float] = time.time,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._store = store
        self._prune_older_than_s = prune_older_than_s
        self._clock = clock
        self._look_every_s = look_every_s
        self._turn = threading.Condition()
        self._woken = True
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="scalescope-upkeep", daemon=True)

    def start(self) -> None:
        """Begin, with what was left when the server stopped."""
        self._thread.start()

    def stop(self) -> None:
        """End after the piece in hand."""
        with self._turn:
            self._stopping = True
            self._turn.notify()
        self._thread.join()

    def wake(self) -> None:
        """Tell that a run was deleted. Any thread; returns at once."""
        with self._turn:
            self._woken = True
            self._turn.notify()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._waited(wait_s):
            try:
                self._erase()
                self._prune()
                wait_s = self._look_every_s
            except StoreError as error:
                logger.warning("upkeep waits for the database: %s", error)
                wait_s = RETRY_S

    def _waited(self, seconds: float) -> bool:
        """Whether it is time to stop, after so long or a call."""
        with self._turn:
            self._turn.wait_for(lambda: self._stopping or self._woken, seconds)
            return self._stopping

    def _erase(self) -> None:
        self._woken = False
        while not self._stopping and self._piece(self._store.writer.erase):
            pass

    def _prune(self) -> None:
        if self._prune_older_than_s is None:
            return
        before = self._store.reader.before(self._clock(), self._prune_older_than_s)
        for found in self._store.reader.prunable(before):
            self._prune_run(found, before)

    def _prune_run(self, found: Prunable, before: float) -> None:
        following: int | None = found.looked_at
        try:
            while following is not None and not self._stopping:
                if self._woken:
                    self._erase()
                prune = functools.partial(self._store.writer.prune, found.run, following, before)
                following = self._piece(prune).following
        except NotFound:
            pass  # Deleted meanwhile.

    def _piece(self, submit: Callable[[], Future[Result]]) -> Result:
        began = time.monotonic()
        result = submit().result()
        with self._turn:
            self._turn.wait_for(lambda: self._stopping, rest_after(time.monotonic() - began))
        return result
