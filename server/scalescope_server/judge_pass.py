"""One pass of the judge over a run: findings, then rules, committed in one transaction."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from scalescope_server.judge_findings import Weighed, Weighing
from scalescope_server.rules.ticks import Pulse
from scalescope_server.store.alert_records import Committed, Watched
from scalescope_server.store.engine import Store
from scalescope_server.store.records import RunId
from scalescope_server.store.vigil import Vigil
from scalescope_server.watching.clock import Shift
from scalescope_server.watching.keeper import Keeper
from scalescope_server.watching.lookout import Lookout
from scalescope_server.watching.stretches import PIECE, read_stretches

_ENDED = ("finished", "crashed")


class Outcome(Enum):
    """What became of one pass."""

    NOTHING = "nothing was to be judged"
    DONE = "all there is was judged"
    MORE = "more rows may be waiting"
    SUPERSEDED = "another server has judged the run since, so it does not count"


class Pass(NamedTuple):
    """``tells``: the outbox has got something to deliver."""

    outcome: Outcome
    tells: bool = False


def judge_once(store: Store, run: RunId, fence: int | None = None) -> Outcome:
    """One pass over ``run`` with nothing remembered but what is stored; see :func:`judge`."""
    return judge(store, run, fence, Keeper(store.reader, time.time)).outcome


def judge(store: Store, run: RunId, fence: int | None, keeper: Keeper) -> Pass:
    """One pass over ``run``, under the lease with ``fence`` where there are leases.

    Raises:
        NotFound: if the run is gone.
        StoreError: if the database could not answer or commit; nothing has changed then.
    """
    vigil, weighing = store.reader.vigil(run), Weighing(store, run)
    lookout = keeper.take(vigil, weighing, fence)
    weighed = weighing.weigh(fence, openings=lookout is not None and lookout.needs.findings)
    if lookout is None:
        return Pass(_commit_findings(store, vigil, weighed, weighing.shifts))
    is_all = _watch(store, lookout, weighed) < PIECE and weighed.is_all
    if is_all and vigil.state in _ENDED:
        _see_end(store, lookout, keeper.now())
    lookout.tell_open()
    watched = lookout.outcome(fence)
    is_news = weighed.is_news or lookout.clock.shifts != tuple(weighing.shifts)
    if not (is_news or watched.alerts or watched.position != vigil.position):
        _give_back(keeper, lookout, is_all=True)
        return Pass(Outcome.NOTHING)
    judged = weighed.judged(lookout.clock.shifts) if is_news else None
    committed = store.writer.commit_watched(watched, judged).result()
    if committed is not Committed.DONE:
        return Pass(Outcome.SUPERSEDED if committed is Committed.SUPERSEDED else Outcome.MORE)
    lookout.committed(fence)
    _give_back(keeper, lookout, is_all=is_all)
    return Pass(Outcome.DONE if is_all else Outcome.MORE, watched.tells)


def _give_back(keeper: Keeper, lookout: Lookout, *, is_all: bool) -> None:
    """Of a run that has ended nothing will be asked, unless something is left to tell."""
    if lookout.vigil.state not in _ENDED or not is_all or lookout.is_waiting:
        keeper.give_back(lookout)


def _watch(store: Store, lookout: Lookout, weighed: Weighed) -> int:
    """Let the rules see what the findings have seen; how many updates that were."""
    stretches = read_stretches(
        store.reader, lookout.vigil.run, lookout.needs, lookout.position, weighed.position, opened=weighed.opened
    )
    for stretch in stretches:
        lookout.see(stretch)
    return sum(map(len, stretches))


def _see_end(store: Store, lookout: Lookout, now: float) -> None:
    """Let the rules say at once what they say of the end; of a run that finished all that fires is over with it."""
    state, last = lookout.vigil.state, lookout.at
    at = now if last is None else lookout.clock.later(last, store.reader.starts(lookout.vigil.run)[-1].over_at)
    if lookout.pulses and last is not None:
        lookout.pass_time(Pulse(at, last, state), known_s=0.0)
    if state == "finished":
        lookout.end(at)


def _commit_findings(store: Store, vigil: Vigil, weighed: Weighed, shifts: Sequence[Shift]) -> Outcome:
    if not weighed.is_news:
        return Outcome.NOTHING
    judged = weighed.judged(shifts)
    if vigil.position is not None:
        # Rules that will be for the run later say nothing of what was before.
        watched = Watched(vigil.run, vigil.revision, weighed.position, fence=judged.fence)
        if store.writer.commit_watched(watched, judged).result() is not Committed.DONE:
            return Outcome.SUPERSEDED
    elif not store.writer.commit_judgement(judged).result():
        return Outcome.SUPERSEDED
    return Outcome.DONE if weighed.is_all else Outcome.MORE
