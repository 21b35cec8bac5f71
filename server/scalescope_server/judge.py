"""The judge: findings and rules over what is committed, apart from ingest and never in its way.

It reads the updates of a run past its position in order, folds them with pure functions, and commits new states, the
findings, the alerts and what is to be told of them in one transaction (see ``judge_pass``). So a crash neither loses
nor repeats a judgement, and a slow or locked database delays it and never falsifies it.

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
from dataclasses import dataclass
from typing import Protocol

from scalescope_server.judge_lease import Renewal
from scalescope_server.judge_pass import Outcome, judge
from scalescope_server.judge_pulses import PULSE_S, Pulses
from scalescope_server.store.engine import Store
from scalescope_server.store.errors import Busy, Held, NotFound, StoreError, Unavailable
from scalescope_server.store.leases import TERM_S, Claim
from scalescope_server.store.records import RunId
from scalescope_server.store.vigil import Silence
from scalescope_server.turns import LOOK_RUNS, LOOK_S, Failures, Tenure, Turns, look_again_at
from scalescope_server.watching.keeper import Keeper
from scalescope_server.watching.pack import enter_pack

# After a failed pass (a locked or full database) the run waits so long for its next turn.
RETRY_S = 1.0
# Updates that waited for a rank which has died meanwhile are judged then, whether or not anything else comes.
LOOK_AGAIN_S = 30.0
# The holder of the leases where one server has the database for itself: what its predecessor held is its own at once.
ONLY = "only"
RELEASE_WITHIN_S = 2.0
# So often a run that another server holds is asked for, once a second: longer than a lease lasts.
REGARDS = 10
# Looking at silent runs keeps others waiting no longer.
PULSE_TAKES_S = 0.5

logger = logging.getLogger("scalescope.server")


class Audience(Protocol):
    """Who is told that a run's findings or alerts changed. Any thread; returns at once."""

    def changed(self, run: RunId) -> None: ...


@dataclass(slots=True)
class _Errand:
    """What is done again and again, whatever comes; first at ``at``."""

    action: Callable[[], None]
    every_s: float
    at: float


class Judge:
    """Judges runs on a thread of its own, woken by ingest.

    ``holder``: this server, among those that share the database. ``clock``: seconds that only go forward; ``now``:
    since the epoch. ``outbox``: called where it has got something, by the judge's thread; it returns at once.
    ``pack``: whether the built-in rules are entered first.
    """

    def __init__(
        self,
        store: Store,
        hub: Audience,
        *,
        holder: str = ONLY,
        look_again_s: float = LOOK_AGAIN_S,
        pulse_s: float = PULSE_S,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        outbox: Callable[[], None] = lambda: None,
        pack: bool = True,
    ) -> None:
        self._store = store
        self._hub = hub
        self._holder = holder
        self._clock = clock
        self._now = now
        self._outbox = outbox
        self._pack = pack
        self._keeper = Keeper(store.reader, now)
        self._pulses = Pulses(store, self._keeper, holder, now)
        self._errands = [
            _Errand(self._take_up_unjudged, look_again_s, clock() + look_again_s),
            _Errand(self._pulse, pulse_s, clock() + pulse_s),
        ]
        self._turns = Turns()
        self._tenure = Tenure()
        self._failures = Failures()
        self._renewal = Renewal(store.writer)
        self._awake = threading.Condition()
        # Runs that are to be judged by other rules, and how often that may still be tried.
        self._regards: dict[RunId, int] = {}
        self._stopping = False
        # What it waits for, told once.
        self._waits = ""
        self._thread = threading.Thread(target=self._run, name="scalescope-judge", daemon=True)

    def start(self) -> None:
        """Begin, with whatever was committed and not judged when the server stopped."""
        self._thread.start()
        if self._holder != ONLY:
            self._renewal.start()

    def stop(self) -> None:
        """End after the pass in hand, and let others have the runs."""
        with self._awake:
            self._stopping = True
            self._awake.notify()
        self._thread.join()
        self._renewal.stop()

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

    def regard(self, run: RunId) -> None:
        """Tell that other rules may be for ``run`` than before, although nothing was committed. Any thread."""
        with self._awake:
            self._regards[run] = REGARDS

    def holding(self) -> int:
        """How many runs it judges, and no other server. Any thread."""
        with self._awake:
            return self._tenure.count(self._clock())

    def failing(self) -> tuple[int, int]:
        """(how often a run could not be judged, of how many that is so now). Any thread."""
        with self._awake:
            return self._failures.count, self._failures.runs()

    def _run(self) -> None:
        for first in (self._enter_pack, self._take_up_unjudged):
            while not self._attempt(first):
                self._rest()
        while not self._stopping:
            turn = self._next()
            if isinstance(turn, _Errand):
                self._attempt(turn.action)
                turn.at = self._clock() + turn.every_s
            elif turn is not None and not self._attempt(functools.partial(self._judge, turn), turn):
                self._rest()
                self.wake(turn)
        if self._holder != ONLY:
            # Where the database is away, their time will be over.
            with contextlib.suppress(StoreError, TimeoutError):
                self._store.writer.release(self._holder).result(RELEASE_WITHIN_S)

    def _next(self) -> RunId | _Errand | None:
        """The run whose turn it is, or what is to be done besides; None when it is time to stop."""
        with self._awake:
            while not self._stopping:
                now = self._clock()
                errand = min(self._errands, key=lambda errand: errand.at)
                if now >= errand.at:
                    return errand
                run = self._turns.take(now)
                if run is not None:
                    return run
                self._awake.wait(self._turns.wait_s(now, errand.at - now))
        return None

    def _attempt(self, action: Callable[[], None], run: RunId | None = None) -> bool:
        """Whether it is done with; not while the database is away."""
        try:
            action()
        except NotFound:
            self._clear(run)  # Deleted between the news and its turn.
        except StoreError as error:
            self._tell_waiting(str(error))
            if isinstance(error, Busy | Unavailable) and not isinstance(error, Held):
                self._pulses.doubt()
            return self._stopping
        except Exception as error:
            if self._put_off(run, error):
                logger.exception("run %r cannot be judged; it is tried again after longer and longer pauses", run)
        else:
            self._waits = ""
        return True

    def _tell_waiting(self, why: str) -> None:
        if why != self._waits:
            logger.warning("judging waits for the database: %s", why)
        self._waits = why

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

    def _enter_pack(self) -> None:
        if self._pack and not self._stopping:
            enter_pack(self._store.writer, self._now())

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
        with self._renewal.of(run, fence):
            outcome, tells = judge(self._store, run, fence, self._keeper)
        self._clear(run)
        if tells:
            self._outbox()
        if outcome is Outcome.SUPERSEDED:
            self._note(run, Claim(mine=False, fence=fence, left_s=TERM_S), asked_at)
        elif outcome is not Outcome.NOTHING:
            self._note(run, Claim(mine=True, fence=fence, left_s=TERM_S), asked_at)
            self._hub.changed(run)
        if outcome is Outcome.MORE:
            self.wake(run)

    def _pulse(self) -> None:
        """Let time pass on runs of which no update comes: those that are not looked at now, the next time."""
        for run, left in self._left_regards().items():
            self._attempt(functools.partial(self._judge_anyway, run, left), run)
        ends = self._clock() + PULSE_TAKES_S
        for silence in self._pulses.due():
            if self._stopping or not self._attempt(functools.partial(self._let_pass, silence), silence.run):
                return
            if self._clock() >= ends:
                return

    def _left_regards(self) -> dict[RunId, int]:
        with self._awake:
            left, self._regards = self._regards, {}
        return left

    def _judge_anyway(self, run: RunId, left: int) -> None:
        """Who holds it judges it with the next update; where none comes, whoever takes it then."""
        asked_at = self._clock()
        claim = _answered(self._store.writer.claim(run, self._holder))
        self._note(run, claim, asked_at)
        if claim.mine:
            self._judge(run)
        elif left > 1:
            with self._awake:
                self._regards.setdefault(run, left - 1)

    def _let_pass(self, silence: Silence) -> None:
        run, asked_at = silence.run, self._clock()
        lookout = self._pulses.let_pass(silence)
        if lookout is None:
            return
        with self._awake:
            fence = self._tenure.fence(run, asked_at)
        if fence is None:
            self._let_pass_as_ours(run, asked_at)
            return
        outcome, tells = self._pulses.commit(silence, lookout, fence)
        mine = outcome is not Outcome.SUPERSEDED
        self._note(run, Claim(mine=mine, fence=fence, left_s=TERM_S), asked_at)
        if outcome is Outcome.DONE:
            self._hub.changed(run)
        if tells:
            self._outbox()

    def _let_pass_as_ours(self, run: RunId, asked_at: float) -> None:
        """Look again with the lease: another server may have gone on with the run since it was looked at."""
        claim = _answered(self._store.writer.claim(run, self._holder))
        self._note(run, claim, asked_at)
        found = self._store.reader.silent_runs([run], self._holder)
        if claim.mine and run in found:
            self._let_pass(found[run])

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


def _answered(answer: Future[Claim]) -> Claim:
    """What a claim came to; one on a run that another server is writing is to be made again."""
    try:
        return answer.result()
    except Busy:
        return Claim(mine=False, fence=0, left_s=LOOK_S)
