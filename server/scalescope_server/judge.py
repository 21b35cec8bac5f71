"""The judge: findings over what is committed, apart from ingest and never in its way.

It reads the updates of a run past its position in order, folds them with pure functions, and commits the new
state and the findings in one transaction. So a crash neither loses nor repeats a judgement, and a slow or
locked database delays it and never falsifies it. Updates that come late and belong before its position (a
segment whose spooled data was delivered after the next had begun) make it judge the run anew. One server
holds a SQLite file, so one judge judges a run.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Protocol

from scalescope_server.findings.catalogue import Case, findings, fold, recall, remember
from scalescope_server.findings.history import ScalerRules
from scalescope_server.store.engine import Store
from scalescope_server.store.errors import NotFound, StoreError
from scalescope_server.store.judging import Judged
from scalescope_server.store.records import FindingRow, RunId

# Rows of one pass: small enough that a run of millions, judged anew, lets the others have their turn.
PASS_ROWS = 4096
# After a failed pass (a locked or full database) the run waits so long for its next turn.
RETRY_S = 1.0
# Updates that waited for a rank which has died meanwhile are judged then, whether or not anything else comes.
LOOK_AGAIN_S = 30.0
# torch's default, for a trainer that did not tell its scaler's settings.
DEFAULT_GROWTH_INTERVAL = 2000

logger = logging.getLogger("scalescope.server")


class Audience(Protocol):
    """Who is told that a run's findings changed. Any thread; returns at once."""

    def changed(self, run: RunId) -> None: ...


class Judge:
    """Judges runs on a thread of its own, woken by ingest."""

    def __init__(self, store: Store, hub: Audience, *, look_again_s: float = LOOK_AGAIN_S) -> None:
        self._store = store
        self._hub = hub
        self._look_again_s = look_again_s
        self._waiting: dict[RunId, None] = {}
        self._turn = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="scalescope-judge", daemon=True)

    def start(self) -> None:
        """Begin, with whatever was committed and not judged when the server stopped."""
        self._thread.start()

    def stop(self) -> None:
        """End after the pass in hand."""
        with self._turn:
            self._stopping = True
            self._turn.notify()
        self._thread.join()

    def wake(self, run: RunId) -> None:
        """Tell that ``run`` has new committed rows. Any thread; returns at once."""
        with self._turn:
            self._waiting[run] = None
            self._turn.notify()

    def _run(self) -> None:
        while not self._attempt(self._take_up_unjudged):
            self._rest()
        while not self._stopping:
            run = self._next()
            if run is None:
                self._attempt(self._take_up_unjudged)
            elif not self._attempt(functools.partial(self._judge, run)):
                self._rest()
                self.wake(run)

    def _next(self) -> RunId | None:
        """The run whose turn it is; None when none came for a while, or when it is time to stop."""
        with self._turn:
            self._turn.wait_for(lambda: self._stopping or bool(self._waiting), self._look_again_s)
            if self._stopping or not self._waiting:
                return None
            run = next(iter(self._waiting))
            del self._waiting[run]
            return run

    def _attempt(self, action: Callable[[], None]) -> bool:
        """Whether it is done with; not while the database is away."""
        try:
            action()
        except NotFound:
            pass  # Deleted between the news and its turn.
        except StoreError as error:
            logger.warning("judging waits for the database: %s", error)
            return self._stopping
        except Exception:
            logger.exception("a run could not be judged; it is tried again at its next update")
        return True

    def _rest(self) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._stopping, timeout=RETRY_S)

    def _take_up_unjudged(self) -> None:
        if self._stopping:
            return
        for run in self._store.reader.unjudged():
            self.wake(run)

    def _judge(self, run: RunId) -> None:
        if judge_once(self._store, run):
            self.wake(run)
        self._hub.changed(run)


def judge_once(store: Store, run: RunId) -> bool:
    """One pass over ``run``; whether more rows may be waiting.

    Raises:
        NotFound: if the run is gone.
        StoreError: if the database could not answer or commit; nothing has changed then.
    """
    _, state = store.reader.judgement(run)
    case = recall(state) or Case()
    steps, stored = store.reader.steps_after(run, case.position, PASS_ROWS)
    if len(steps) < PASS_ROWS and stored != case.updates + len(steps):
        case = Case()
        steps, stored = store.reader.steps_after(run, case.position, PASS_ROWS)
    if not steps:
        return False
    rules = _rules(store, run)
    case = fold(case, steps, rules)
    found: tuple[FindingRow, ...] = findings(case, rules)
    store.writer.commit_judgement(Judged(run, case.updates, remember(case), found)).result()
    return len(steps) == PASS_ROWS


def _rules(store: Store, run: RunId) -> ScalerRules:
    scaler = store.reader.scaler(run) or {}
    interval = scaler.get("growth_interval")
    return ScalerRules(interval if isinstance(interval, int) and interval > 0 else DEFAULT_GROWTH_INTERVAL)
