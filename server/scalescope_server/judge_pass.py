"""One pass of the judge over a run: findings, then rules, committed in one transaction."""

from __future__ import annotations

import time
from enum import Enum
from typing import NamedTuple

from scalescope_server.judge_findings import Weighed, Weighing
from scalescope_server.rules.ticks import Pulse
from scalescope_server.store.alert_records import Committed
from scalescope_server.store.engine import Store
from scalescope_server.store.judging import Judged
from scalescope_server.store.records import RunId
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
    lookout = keeper.take(vigil, weighing.start)
    weighed = weighing.weigh(fence, openings=lookout is not None and lookout.needs.findings)
    if lookout is None:
        return Pass(_commit_findings(store, weighed))
    is_all = _watch(store, lookout, weighed) < PIECE and weighed.is_all
    watched = lookout.outcome(fence)
    if not (weighed.is_news or watched.alerts or watched.position != vigil.position):
        keeper.give_back(lookout)
        return Pass(Outcome.NOTHING)
    committed = store.writer.commit_watched(watched, weighed.judged if weighed.is_news else None).result()
    if committed is not Committed.DONE:
        return Pass(Outcome.SUPERSEDED if committed is Committed.SUPERSEDED else Outcome.MORE)
    lookout.committed()
    if vigil.state not in _ENDED or not is_all or lookout.is_waiting:
        keeper.give_back(lookout)
    return Pass(Outcome.DONE if is_all else Outcome.MORE, watched.tells)


def _watch(store: Store, lookout: Lookout, weighed: Weighed) -> int:
    """Let the rules see what the findings have seen; how many updates that were."""
    stretches = read_stretches(
        store.reader, lookout.vigil.run, lookout.needs, lookout.position, weighed.position, opened=weighed.opened
    )
    for stretch in stretches:
        lookout.see(stretch)
    if lookout.vigil.state in _ENDED and lookout.pulses and lookout.at is not None:
        # No more time passes for a run that has ended: what rules say of that, they say at once.
        lookout.pass_time(Pulse(lookout.at, lookout.at, lookout.vigil.state))
    lookout.tell_open()
    return sum(map(len, stretches))


def _commit_findings(store: Store, weighed: Weighed) -> Outcome:
    judged: Judged = weighed.judged
    if not weighed.is_news:
        return Outcome.NOTHING
    if not store.writer.commit_judgement(judged).result():
        return Outcome.SUPERSEDED
    return Outcome.DONE if weighed.is_all else Outcome.MORE
