"""The state of one rule on one run, moved on by verdicts: pure, so it is the same live, restored and tried on the past.

    quiet --holds--> pending --long enough--> firing --does not--> recovering --long enough--> resolved, and quiet

Without ``for`` there is no pending, without ``keep firing`` no recovering. A verdict that is no answer (*no data*,
*error*) never makes an alert fire and never ends one: a firing it interrupts is suspended, and the next answer says
whether it goes on, under the same number, or is over. What was pending begins anew.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from scalescope_server.rules.expression import Duration, Updates
from scalescope_server.rules.ticks import Pulse, Tick
from scalescope_server.rules.verdict import Answer, Verdict


class State(Enum):
    """``RESOLVED`` is only ever moved to: the alert is quiet from then on."""

    QUIET = "quiet"
    PENDING = "pending"
    FIRING = "firing"
    RECOVERING = "recovering"
    RESOLVED = "resolved"
    NO_DATA = "no data"
    ERROR = "error"


class Terms(Struct, frozen=True):
    """How patient a rule is. None: at once.

    ``hold``: it fires at the last of so many updates in a row at which it holds, or so long after the first of them.
    ``keep_firing``: it is resolved at the last of so many updates in a row at which it does not hold, or so long after
    the first of them.
    """

    hold: Duration | None = None
    keep_firing: Duration | None = None


class Alert(Struct, frozen=True):
    """All that is stored of a rule on a run.

    ``since_step``, ``since_at``: when it came into its state; None before the first verdict. ``held_step``,
    ``held_at``: since when the condition held, of what is pending or of its newest firing. ``counted``: updates in a
    row that speak for the next state, while pending or recovering. ``value``, ``culprit``: the evidence of its newest
    firing as it began, or of what is pending. ``sentence``: why it cannot be evaluated, while that is so.
    ``firing``: the number of its newest firing, 0 before the first; ``is_open``: that firing is not resolved;
    ``fired_step``, ``fired_at``: when it began. ``told``, ``told_resolved``: the newest firings that a notice was
    made of, of their beginning and of their end; ``told_step``, ``told_at``: when the last beginning was (``telling``).
    """

    state: State = State.QUIET
    since_step: int | None = None
    since_at: float | None = None
    held_step: int | None = None
    held_at: float | None = None
    counted: int = 0
    value: float | None = None
    culprit: str | int | None = None
    sentence: str = ""
    firing: int = 0
    is_open: bool = False
    fired_step: int | None = None
    fired_at: float | None = None
    told: int = 0
    told_resolved: int = 0
    told_step: int | None = None
    told_at: float | None = None


class Transition(Struct, frozen=True):
    """One move of an alert, from one state to another at an update; ``step`` is None where only time had passed.

    ``firing``: the number of the firing that began, went on, was suspended or ended; 0 where none was.
    """

    before: State
    after: State
    step: int | None
    at: float
    value: float | None
    culprit: str | int | None
    sentence: str
    firing: int


Outcome: TypeAlias = tuple[Alert, tuple[Transition, ...]]


def advance(alert: Alert, verdict: Verdict, tick: Tick | Pulse, terms: Terms) -> Outcome:
    """``alert`` after ``verdict`` at ``tick``, and the move that it made: none, or one."""
    if is_settled(alert, verdict.answer):
        return alert, ()
    moment = _Moment(tick.step if isinstance(tick, Tick) else None, tick.at)
    match verdict.answer:
        case Answer.HOLDS:
            return _holds(alert, verdict, moment, terms.hold)
        case Answer.DOES_NOT:
            return _does_not(alert, moment, terms.keep_firing)
        case Answer.NO_DATA:
            return _moved(alert, State.NO_DATA, moment)
        case Answer.ERROR:
            return _moved(msgspec.structs.replace(alert, sentence=verdict.sentence), State.ERROR, moment)


def is_settled(alert: Alert, answer: Answer) -> bool:
    """Whether ``answer`` changes nothing of ``alert``, however often it comes."""
    return settled_by(alert) is answer


def settled_by(alert: Alert) -> Answer | None:
    """The answer that changes nothing of ``alert``; None while it waits for something."""
    return _SETTLED.get(alert.state)


_SETTLED = {
    State.QUIET: Answer.DOES_NOT,
    State.FIRING: Answer.HOLDS,
    State.NO_DATA: Answer.NO_DATA,
    State.ERROR: Answer.ERROR,
}


class _Moment(NamedTuple):
    step: int | None
    at: float

    @property
    def updates(self) -> int:
        """How many updates have come with it: one, or none where only time has passed."""
        return int(self.step is not None)


def _holds(alert: Alert, verdict: Verdict, moment: _Moment, hold: Duration | None) -> Outcome:
    if alert.is_open:
        return _moved(alert, State.FIRING, moment)
    waited = alert.state is State.PENDING
    pending = msgspec.structs.replace(
        alert,
        held_step=alert.held_step if waited else moment.step,
        held_at=alert.held_at if waited else moment.at,
        counted=(alert.counted if waited else 0) + moment.updates,
        value=verdict.value,
        culprit=verdict.culprit,
    )
    if not _lasted(hold, pending.counted, pending.held_at, moment):
        return (pending, ()) if waited else _moved(pending, State.PENDING, moment)
    fired = msgspec.structs.replace(
        pending, firing=alert.firing + 1, is_open=True, fired_step=moment.step, fired_at=moment.at
    )
    return _moved(fired, State.FIRING, moment)


def _does_not(alert: Alert, moment: _Moment, keep_firing: Duration | None) -> Outcome:
    if not alert.is_open:
        return _moved(alert, State.QUIET, moment)
    waited = alert.state is State.RECOVERING
    counted = (alert.counted if waited else 0) + moment.updates
    if _lasted(keep_firing, counted, alert.since_at if waited else moment.at, moment):
        return _moved(alert, State.RESOLVED, moment)
    if waited:
        return msgspec.structs.replace(alert, counted=counted), ()
    return _moved(msgspec.structs.replace(alert, counted=counted), State.RECOVERING, moment)


def _lasted(duration: Duration | None, counted: int, since: float | None, moment: _Moment) -> bool:
    if duration is None:
        return True
    if isinstance(duration, Updates):
        return counted >= duration.count
    return since is not None and moment.at - since >= duration.seconds


def _moved(alert: Alert, after: State, moment: _Moment) -> Outcome:
    failed = after is State.ERROR
    transition = Transition(
        before=alert.state,
        after=after,
        step=moment.step,
        at=moment.at,
        value=alert.value if alert.is_open or after is State.PENDING else None,
        culprit=alert.culprit if alert.is_open or after is State.PENDING else None,
        sentence=alert.sentence if failed else "",
        firing=alert.firing if alert.is_open else 0,
    )
    resolved = after is State.RESOLVED
    moved = msgspec.structs.replace(
        alert,
        state=State.QUIET if resolved else after,
        since_step=moment.step,
        since_at=moment.at,
        counted=alert.counted if after in (State.PENDING, State.RECOVERING) else 0,
        sentence=alert.sentence if failed else "",
        is_open=alert.is_open and not resolved,
    )
    return moved, (transition,)
