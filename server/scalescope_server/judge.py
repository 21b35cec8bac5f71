"""The judge: findings over what is committed, apart from ingest and never in its way.

It reads the updates of a run past its position in order, folds them with pure functions, and commits the new
state and the findings in one transaction. So a crash neither loses nor repeats a judgement, and a slow or
locked database delays it and never falsifies it. Updates that come late and belong before its position (a
segment whose spooled data was delivered after the next had begun) make it judge the run anew.

Where several servers share the database, a run is judged by the one that holds its lease (see ``store.leases``). The
others look at it every second until all of it is judged, so that one of them goes on when the holder dies.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from enum import Enum
from typing import Protocol

import msgspec

from scalescope_server.findings.catalogue import Case, conclude, findings, fold, recall, remember
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.store.engine import Store
from scalescope_server.store.errors import Busy, NotFound, StoreError
from scalescope_server.store.judging import Judged
from scalescope_server.store.leases import TERM_S, Claim
from scalescope_server.store.records import FindingRow, RunId
from scalescope_server.turns import LOOK_RUNS, LOOK_S, Failures, Tenure, Turns, look_again_at

# Rows of one pass: small enough that a run of millions, judged anew, lets the others have their turn.
PASS_ROWS = 4096
# After a failed pass (a locked or full database) the run waits so long for its next turn.
RETRY_S = 1.0
# Updates that waited for a rank which has died meanwhile are judged then, whether or not anything else comes.
LOOK_AGAIN_S = 30.0
# The holder of the leases where one server has the database for itself: what its predecessor held is its own at once.
ONLY = "only"
RELEASE_WITHIN_S = 2.0

logger = logging.getLogger("scalescope.server")


class Outcome(Enum):
    """What became of one pass."""

    NOTHING = "nothing was to be judged"
    DONE = "all there is was judged"
    MORE = "more rows may be waiting"
    SUPERSEDED = "another server has judged the run since, so it does not count"


class Audience(Protocol):
    """Who is told that a run's findings changed. Any thread; returns at once."""

    def changed(self, run: RunId) -> None: ...


class Judge:
    """Judges runs on a thread of its own, woken by ingest.

    ``holder``: this server, among those that share the database. ``clock``: seconds that only go forward.
    """

    def __init__(
        self,
        store: Store,
        hub: Audience,
        *,
        holder: str = ONLY,
        look_again_s: float = LOOK_AGAIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._hub = hub
        self._holder = holder
        self._look_again_s = look_again_s
        self._clock = clock
        self._look_at = clock() + look_again_s
        self._turns = Turns()
        self._tenure = Tenure()
        self._failures = Failures()
        self._awake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="scalescope-judge", daemon=True)

    def start(self) -> None:
        """Begin, with whatever was committed and not judged when the server stopped."""
        self._thread.start()

    def stop(self) -> None:
        """End after the pass in hand, and let others have the runs."""
        with self._awake:
            self._stopping = True
            self._awake.notify()
        self._thread.join()

    def wake(self, run: RunId) -> None:
        """Tell that ``run`` has new committed rows. Any thread; returns at once."""
        with self._awake:
            self._turns.at_once(run)
            self._awake.notify()

    def hear(self, run: RunId) -> None:
        """Tell that another server has committed rows of ``run``, and may judge it. Any thread; returns at once."""
        now = self._clock()
        with self._awake:
            if self._tenure.fence(run, now) is not None:
                self._turns.at_once(run)
            elif run not in self._failures:
                self._turns.later(run, now + LOOK_S)
            self._awake.notify()

    def holding(self) -> int:
        """How many runs it judges, and no other server. Any thread."""
        with self._awake:
            return self._tenure.count(self._clock())

    def failing(self) -> tuple[int, int]:
        """(how often a run could not be judged, of how many that is so now). Any thread."""
        with self._awake:
            return self._failures.count, self._failures.runs()

    def _run(self) -> None:
        while not self._attempt(self._take_up_unjudged):
            self._rest()
        while not self._stopping:
            run = self._next()
            if run is None:
                self._attempt(self._take_up_unjudged)
                self._look_at = self._clock() + self._look_again_s
            elif not self._attempt(functools.partial(self._judge, run), run):
                self._rest()
                self.wake(run)
        if self._holder != ONLY:
            # Where the database is away, their time will be over.
            with contextlib.suppress(StoreError, TimeoutError):
                self._store.writer.release(self._holder).result(RELEASE_WITHIN_S)

    def _next(self) -> RunId | None:
        """The run whose turn it is; None when it is time to look for those that nobody told of, or to stop."""
        with self._awake:
            while not self._stopping:
                now = self._clock()
                if now >= self._look_at:
                    return None
                run = self._turns.take(now)
                if run is not None:
                    return run
                self._awake.wait(self._turns.wait_s(now, self._look_at - now))
        return None

    def _attempt(self, action: Callable[[], None], run: RunId | None = None) -> bool:
        """Whether it is done with; not while the database is away."""
        try:
            action()
        except NotFound:
            self._clear(run)  # Deleted between the news and its turn.
        except StoreError as error:
            logger.warning("judging waits for the database: %s", error)
            return self._stopping
        except Exception as error:
            if self._put_off(run, error):
                logger.exception("run %r cannot be judged; it is tried again after longer and longer pauses", run)
        return True

    def _put_off(self, run: RunId | None, error: Exception) -> bool:
        """Let a run that cannot be judged wait longer each time; whether that is news."""
        if run is None:
            return True
        with self._awake:
            pause_s, new = self._failures.note(run, repr(error))
            self._turns.later(run, self._clock() + pause_s)
        return new

    def _clear(self, run: RunId | None) -> None:
        with self._awake:
            if run is not None:
                self._failures.clear(run)

    def _rest(self) -> None:
        with self._awake:
            self._awake.wait_for(lambda: self._stopping, timeout=RETRY_S)

    def _take_up_unjudged(self) -> None:
        if self._stopping:
            return
        for run in self._store.reader.unjudged():
            self.wake(run)

    def _judge(self, run: RunId) -> None:
        asked_at = self._clock()
        with self._awake:
            fence = self._tenure.fence(run, asked_at)
        if fence is None:
            self._look(run)
            return
        outcome = judge_once(self._store, run, fence)
        self._clear(run)
        if outcome is Outcome.SUPERSEDED:
            self._note(run, Claim(mine=False, fence=fence, left_s=TERM_S), asked_at)
        elif outcome is not Outcome.NOTHING:
            self._note(run, Claim(mine=True, fence=fence, left_s=TERM_S), asked_at)
            self._hub.changed(run)
        if outcome is Outcome.MORE:
            self.wake(run)

    def _look(self, run: RunId) -> None:
        """Ask whose ``run`` is, and all others in the line that are not ours; what may be judged here has its turn."""
        asked_at = self._clock()
        with self._awake:
            others = self._turns.take_all(asked_at, lambda r: self._tenure.fence(r, asked_at) is None, LOOK_RUNS)
        with contextlib.ExitStack() as undoing:
            # Where the database does not answer they stay in the line.
            undoing.callback(self._wake_all, others)
            claims = self._claims([run, *others])
            undoing.pop_all()
        for claimed, claim in claims.items():
            self._note(claimed, claim, asked_at)
            if claim.mine:
                self.wake(claimed)

    def _wake_all(self, runs: Collection[RunId]) -> None:
        for run in runs:
            self.wake(run)

    def _claims(self, runs: Collection[RunId]) -> Mapping[RunId, Claim]:
        """Of those of ``runs`` that are to be judged the answers to our claims; none is made on what another has."""
        outlooks = self._store.reader.outlooks(runs, self._holder)
        asked = {run: outlook for run, outlook in outlooks.items() if outlook.unjudged}
        free = [run for run, outlook in asked.items() if outlook.claim.mine]
        answers = [self._store.writer.claim(run, self._holder) for run in free]
        claims = {run: outlook.claim for run, outlook in asked.items() if not outlook.claim.mine}
        for run, answer in zip(free, answers, strict=True):
            with contextlib.suppress(NotFound):
                claims[run] = _answered(answer)
        return claims

    def _note(self, run: RunId, claim: Claim, asked_at: float) -> None:
        with self._awake:
            self._tenure.note(run, claim, asked_at)
            if not claim.mine:
                self._turns.later(run, look_again_at(claim, self._clock()))


def judge_once(store: Store, run: RunId, fence: int | None = None) -> Outcome:
    """One pass over ``run``, under the lease with ``fence`` where there are leases.

    Raises:
        NotFound: if the run is gone.
        StoreError: if the database could not answer or commit; nothing has changed then.
    """
    _, state = store.reader.judgement(run)
    case = judged = recall(state) or Case()
    steps, stored = store.reader.steps_after(run, case.position, PASS_ROWS)
    if len(steps) < PASS_ROWS and stored != case.updates + len(steps):
        if store.reader.is_whole(run):
            case = Case()
            steps, stored = store.reader.steps_after(run, case.position, PASS_ROWS)
        else:
            # What is pruned cannot be judged anew: what was found of it stays, and what came late is counted.
            case = msgspec.structs.replace(case, updates=stored - len(steps))
    rules, setting = ScalerRules.of(store.reader.scaler(run)), store.reader.setting(run)
    case = conclude(fold(case, steps, rules), setting)
    if not steps and case == judged:
        return Outcome.NOTHING
    found: tuple[FindingRow, ...] = findings(case, rules, setting)
    if not store.writer.commit_judgement(Judged(run, case.updates, remember(case), found, fence)).result():
        return Outcome.SUPERSEDED
    return Outcome.MORE if len(steps) == PASS_ROWS else Outcome.DONE


def _answered(answer: Future[Claim]) -> Claim:
    """What a claim came to; one on a run that another server is writing is to be made again."""
    try:
        return answer.result()
    except Busy:
        return Claim(mine=False, fence=0, left_s=LOOK_S)
