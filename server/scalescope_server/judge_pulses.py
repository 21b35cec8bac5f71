"""Time that passes without an update: what rules say of it, on which runs, and when that can be believed.

A run is silent by the server's clock, as long as the server could have known better: while the database was away, or
the server itself was down, updates may have come that nobody stored. So a rule says nothing of a silence that is older
than that until an update comes, or until it is as long again as that rule asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from scalescope_server.judge_findings import Weighing
from scalescope_server.judge_pass import Outcome, Pass
from scalescope_server.rules.ticks import Pulse
from scalescope_server.store.alert_records import Committed
from scalescope_server.store.engine import Store
from scalescope_server.store.judging import Position
from scalescope_server.store.records import RunId, RunState
from scalescope_server.store.vigil import Silence
from scalescope_server.watching.keeper import Keeper
from scalescope_server.watching.lookout import Lookout

# How often silent runs are looked at.
PULSE_S = 1.0
# Silent for longer, a run is left alone: nobody waits for it any more.
GIVEN_UP_S = 24 * 3600.0
# So long between two looks says that the server, or its machine, was asleep.
ASLEEP_S = 15.0


class _Look(NamedTuple):
    """How a run stood when it was last looked at. ``next_s``: how long it must have been silent before rules may say
    anything else; None: they have said all.
    """

    state: RunState
    position: Position | None
    next_s: float | None


class Pulses:
    """``now``: seconds since the epoch. ``holder``: this server, among those that share the database."""

    def __init__(self, store: Store, keeper: Keeper, holder: str, now: Callable[[], float]) -> None:
        self._store = store
        self._reader = store.reader
        self._keeper = keeper
        self._holder = holder
        self._now = now
        self._trusted_since = now()
        self._looked_at = self._trusted_since
        self._is_in_doubt = False
        self._looks: dict[RunId, _Look] = {}

    def doubt(self) -> None:
        """The database was away: what did not come meanwhile may have been sent."""
        self._is_in_doubt = True

    def due(self) -> Iterator[Silence]:
        """Runs of which time alone may change an alert, and that no other server judges."""
        keeper, now, revision = self._keeper, self._now(), self._keeper.book.revision
        keeper.renew(self._reader.rules_revision())
        if keeper.book.revision != revision:
            self._looks.clear()
        self._trust(now)
        waiting = keeper.waiting()
        if not keeper.book.pulses and not waiting:
            return
        patience_s = keeper.book.patience_s + self._reader.silent_after_s
        runs = {*self._reader.to_watch(now - max(2 * patience_s, GIVEN_UP_S), now - patience_s), *waiting}
        self._looks = {run: look for run, look in self._looks.items() if run in runs}
        for run, silence in self._reader.silent_runs(runs, self._holder).items():
            if silence.claim.mine and (run in waiting or self._is_due(silence, now)):
                yield silence

    def let_pass(self, silence: Silence) -> Lookout | None:
        """The rules on a run after this moment, where they say something new, which is to be committed."""
        lookout = self._seen(silence)
        if lookout is None:
            self._looks[silence.run] = _Look(silence.state, silence.position, None)
            return None
        now = self._now()
        pulse = _pulse(silence, lookout.at, now)
        wait_s = lookout.pass_time(pulse, self._known_s(silence, now), self._reader.silent_after_s)
        if silence.state == "finished":
            lookout.end(pulse.at, timed=True)
        lookout.tell_open()
        if wait_s is not None:
            wait_s += _silent_s(silence, now)
        self._looks[silence.run] = _Look(silence.state, silence.position, wait_s)
        if lookout.outcome(None).alerts:
            return lookout
        self._keeper.give_back(lookout)
        return None

    def commit(self, silence: Silence, lookout: Lookout, fence: int) -> Pass:
        """Store what they say under the lease with ``fence``, unless an update has come."""
        watched = msgspec.structs.replace(lookout.outcome(fence), attempted=silence.attempted)
        self._looks.pop(silence.run, None)
        committed = self._store.writer.commit_watched(watched).result()
        if committed is not Committed.DONE:
            return Pass(Outcome.SUPERSEDED if committed is Committed.SUPERSEDED else Outcome.MORE)
        lookout.committed(fence)
        self._keeper.give_back(lookout)
        return Pass(Outcome.DONE, watched.tells)

    def _trust(self, now: float) -> None:
        """From now on, where what came could not be stored, or nobody was there to look."""
        if self._is_in_doubt or now - self._looked_at > ASLEEP_S or now < self._looked_at:
            self._trusted_since, self._is_in_doubt = now, False
        self._trusted_since = max(self._trusted_since, min(self._store.writer.stored_since(), now))
        self._looked_at = now

    def _seen(self, silence: Silence) -> Lookout | None:
        """The rules on a run as they stand; None where none that watches it asks for time."""
        fence = silence.claim.fence
        found = self._keeper.stands_at(silence.run, silence.position, fence)
        if found is None:
            vigil = self._reader.vigil(silence.run)
            found = self._keeper.take(vigil, Weighing(self._store, silence.run), fence, timed=True)
        if found is not None:
            found.vigil = msgspec.structs.replace(found.vigil, state=silence.state)
        return found

    def _is_due(self, silence: Silence, now: float) -> bool:
        look = self._looks.get(silence.run)
        if look is None or (look.state, look.position) != (silence.state, silence.position):
            return silence.state != "running" or _silent_s(silence, now) >= PULSE_S
        return look.next_s is not None and _silent_s(silence, now) >= look.next_s

    def _known_s(self, silence: Silence, now: float) -> float:
        """For how long of its silence whatever came would have been stored."""
        last = silence.last_update_at
        return math.inf if last is not None and last >= self._trusted_since else now - self._trusted_since


def _pulse(silence: Silence, at: float | None, now: float) -> Pulse:
    """The moment that it is for a run, by the clock of its updates, of which the last was ``at``."""
    if at is None or silence.last_update_at is None:
        return Pulse(now, None, silence.state)
    return Pulse(at + _silent_s(silence, now), at, silence.state)


def _silent_s(silence: Silence, now: float) -> float:
    """For how long no update came; before the first, the time itself."""
    return now if silence.last_update_at is None else max(now - silence.last_update_at, 0.0)
