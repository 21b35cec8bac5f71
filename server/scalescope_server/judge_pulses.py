"""Time that passes without an update: what rules say of it, on which runs, and when that can be believed.

A run is silent by the server's clock, as long as the server could have known better: while the database was away, or
the server itself was down, updates may have come that nobody stored. So what is older than that says nothing until
an update comes, or for as long as the longest silence that any rule asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from scalescope_server.judge_findings import Weighing
from scalescope_server.judge_pass import Outcome, Pass
from scalescope_server.rules.ticks import Pulse
from scalescope_server.store.alert_records import Committed
from scalescope_server.store.engine import Store
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
_ENDED = ("finished", "crashed")


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
        self._states: dict[RunId, RunState] = {}
        # When the last update came of runs of which rules have said all that they can say of its silence.
        self._settled: dict[RunId, float | None] = {}

    def doubt(self) -> None:
        """The database was away: what did not come meanwhile may have been sent."""
        self._is_in_doubt = True

    def due(self) -> Iterator[Silence]:
        """Runs of which time alone may change an alert, and that no other server judges."""
        keeper, now, revision = self._keeper, self._now(), self._keeper.book.revision
        keeper.renew(self._reader.rules_revision())
        if keeper.book.revision != revision:
            self._settled.clear()
        if self._is_in_doubt or now - self._looked_at > ASLEEP_S or now < self._looked_at:
            self._trusted_since, self._is_in_doubt = now, False
        self._looked_at = now
        waiting = keeper.waiting()
        if not keeper.book.pulses and not waiting:
            return
        horizon = max(2 * self._patience_s(), GIVEN_UP_S)
        runs = {*self._reader.to_watch(now - horizon), *waiting}
        self._states = {run: state for run, state in self._states.items() if run in runs}
        self._settled = {run: at for run, at in self._settled.items() if run in runs}
        for run, silence in self._reader.silent_runs(runs, self._holder).items():
            if silence.claim.mine and (run in waiting or self._says_something(silence, now)):
                yield silence

    def let_pass(self, silence: Silence) -> Lookout | None:
        """The rules on a run after this moment, where they say something new, which is to be committed."""
        lookout = self._seen(silence)
        if lookout is not None:
            lookout.pass_time(self._pulse(silence, lookout))
            lookout.tell_open()
            if lookout.outcome(None).alerts:
                return lookout
            self._keeper.give_back(lookout)
        self._passed(silence)
        return None

    def commit(self, silence: Silence, lookout: Lookout, fence: int) -> Pass:
        """Store what they say under the lease with ``fence``."""
        watched = lookout.outcome(fence)
        committed = self._store.writer.commit_watched(watched).result()
        if committed is not Committed.DONE:
            return Pass(Outcome.SUPERSEDED if committed is Committed.SUPERSEDED else Outcome.MORE)
        lookout.committed()
        self._keeper.give_back(lookout)
        self._passed(silence)
        return Pass(Outcome.DONE, watched.tells)

    def _seen(self, silence: Silence) -> Lookout | None:
        """The rules on a run as they stand; None where no rule watches it."""
        found = self._keeper.stands_at(silence.run, silence.position)
        if found is not None:
            return found
        return self._keeper.take(self._reader.vigil(silence.run), Weighing(self._store, silence.run).start)

    def _pulse(self, silence: Silence, lookout: Lookout) -> Pulse:
        """The moment that it is for a run, by the clock of its updates."""
        now = self._now()
        if lookout.at is None or silence.last_update_at is None:
            return Pulse(now, None, silence.state)
        return Pulse(lookout.at + max(now - silence.last_update_at, 0.0), lookout.at, silence.state)

    def _passed(self, silence: Silence) -> None:
        """What rules say of this moment is committed, or nothing new."""
        self._states[silence.run] = silence.state
        last = silence.last_update_at
        if last is not None and self._now() - last > self._patience_s():
            self._settled[silence.run] = last

    def _says_something(self, silence: Silence, now: float) -> bool:
        changed = self._states.get(silence.run) != silence.state
        if silence.last_update_at is None or silence.state in _ENDED:
            return changed
        if silence.last_update_at < self._trusted_since and now - self._trusted_since < self._keeper.book.silence_s:
            return False
        is_settled = self._settled.get(silence.run) == silence.last_update_at
        return changed or (now - silence.last_update_at >= PULSE_S and not is_settled)

    def _patience_s(self) -> float:
        """For how long without an update rules may change what they say."""
        return self._keeper.book.patience_s + self._reader.silent_after_s
