"""A rule tried on the past: the evaluator and the states that judge live, over updates that are stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec
import numpy as np
from msgspec import Struct

from scalescope_server.rules.alert import Alert, State, Transition
from scalescope_server.rules.compiled import Compiled
from scalescope_server.rules.course import Phase, Start, phases
from scalescope_server.rules.dependence import silences
from scalescope_server.rules.ending import RUN_ENDED, ended, is_over
from scalescope_server.rules.expression import Seconds
from scalescope_server.rules.stretch import Stretch
from scalescope_server.rules.ticks import Pulse, RunState
from scalescope_server.rules.watch import Watch

# Time alone is judged by the second: shorter pauses than that say nothing before the next update.
PULSE_S = 1.0


class Firing(Struct, frozen=True):
    """One time that the rule would have fired. ``step`` None: when only time had passed.

    ``held_step``: since which update the condition had held. ``until_step``, ``until_at``: when it was resolved; None
    where it still fires at the last update. ``value``, ``culprit``: as it fired.
    """

    number: int
    step: int | None
    at: float
    held_step: int | None
    value: float | None
    culprit: str | int | None
    until_step: int | None = None
    until_at: float | None = None


class Backtest(Struct, frozen=True):
    """``updates``: how many were judged; ``last_step``, ``last_at``: the last of them. ``alert``: as it ends.

    ``error``: why the rule cannot be evaluated.
    """

    firings: tuple[Firing, ...]
    alert: Alert
    updates: int
    last_step: int | None
    last_at: float | None
    error: str = ""


def backtest(
    rule: Compiled,
    past: Iterable[Stretch],
    *,
    starts: Sequence[Start] = (),
    silent_after_s: float = math.inf,
    until: float | None = None,
    shift_after: Callable[[int], float] = lambda _: 0.0,
) -> Backtest:
    """What ``rule`` would have done over ``past``, in order.

    ``starts``: those of the run, in order. Between its updates time is made to pass as it did, and after the last of
    them up to ``until``, by their clock. ``shift_after``: by how many seconds that of ``past`` is ahead of it as a
    start ends, of which all updates were seen. Errors of evaluation are in the answer.
    """
    trial = _Trial(rule, starts, silent_after_s, shift_after)
    for stretch in past:
        trial.see(stretch)
    if until is not None:
        # What is due at this very moment has happened.
        trial.wait(math.nextafter(until + shift_after(starts[-1].segment if starts else 0), math.inf), None)
    return trial.outcome()


class _Trial:
    """A rule on its way through the past. ``_last``: of which start the last update was, and when."""

    def __init__(
        self, rule: Compiled, starts: Sequence[Start], silent_after_s: float, shift_after: Callable[[int], float]
    ) -> None:
        self._rule = rule
        self._starts = starts
        self._silent_after_s = silent_after_s
        self._shift_after = shift_after
        self._watch = Watch([rule])
        self._is_timed = rule.needs.pulses
        self._asked = sorted(silences(rule.condition)) if rule.condition is not None else []
        self._firings: list[Firing] = []
        self._updates = 0
        self._last: tuple[int, float] | None = None
        self._last_step: int | None = None

    def see(self, stretch: Stretch) -> None:
        """Judge the updates that follow, and the time that passed before each."""
        for part in self._parts(stretch):
            self.wait(float(part.at[0]), int(part.segment[0]))
            self._watch.stretch(part, self._hear)
            self._updates += len(part)
            self._last, self._last_step = (int(part.segment[-1]), float(part.at[-1])), int(part.step[-1])

    def wait(self, until: float, following: int | None) -> None:
        """Let time pass up to the next update, which the start ``following`` tells; None: up to now."""
        if self._last is not None and self._last[0] == following:
            found = [Phase(self._last[1], "running", counts=True)] if self._is_timed else []
        else:
            found = phases(self._shifted(), self._silent_after_s, self._last, following)
        # What a trainer said of itself has happened, whatever its clock says.
        come = [phase for phase in found if phase.at <= until or phase.state != "silent"]
        stops = [phase.at for phase in come[1:]] + [until]
        for index, (phase, stop) in enumerate(zip(come, stops, strict=False)):
            self._pass(phase, min(stop, until), is_new=index > 0 or self._last is None)

    def outcome(self) -> Backtest:
        at = None if self._last is None else self._last[1]
        firings = tuple(self._firings)
        return Backtest(firings, self._watch.alerts[0], self._updates, self._last_step, at, self._rule.error)

    def _shifted(self) -> list[Start]:
        """The starts by the clock of updates."""
        after = self._shift_after
        return [start.shifted(after(start.segment - 1), after(start.segment)) for start in self._starts]

    def _parts(self, stretch: Stretch) -> Iterator[Stretch]:
        """``stretch`` cut where another start begins, and where it was silent for as long as anything may happen."""
        if not len(stretch):
            return
        cut = np.diff(stretch.segment) != 0
        if self._is_timed:
            terms = self._rule.terms
            waits = [PULSE_S] if isinstance(terms.hold, Seconds) or isinstance(terms.keep_firing, Seconds) else []
            cut |= np.diff(stretch.at) > min([*self._asked, *waits], default=math.inf)
        edges = [0, *(np.flatnonzero(cut) + 1).tolist(), len(stretch)]
        for start, stop in pairwise(edges):
            yield stretch.part(start, stop)

    def _pass(self, phase: Phase, until: float, *, is_new: bool) -> None:
        """Let a phase pass. ``is_new``: the run comes into it, and has not been in it since its last update."""
        last_at = None if self._last is None or not phase.counts else self._last[1]
        asked = [] if last_at is None else [_after(last_at, within_s) for within_s in self._asked]
        moments = [*([phase.at] if is_new else []), *(at for at in asked if phase.at < at < until)]
        now = phase.at
        for at in moments:
            self._wait_until(at, now, last_at, phase.state)
            self._pulse(Pulse(at, last_at, phase.state))
            now = at
        self._wait_until(until, now, last_at, phase.state)

    def _wait_until(self, until: float, now: float, last_at: float | None, state: RunState) -> None:
        """Let the alert move on where it only waits for time to pass."""
        while self._is_timed and (due := self._due()) is not None and now < due < until:
            now = due
            self._pulse(Pulse(due, last_at, state))

    def _due(self) -> float | None:
        """When the alert moves on if nothing comes but time."""
        alert, terms = self._watch.alerts[0], self._rule.terms
        if alert.state is State.PENDING and isinstance(terms.hold, Seconds) and alert.held_at is not None:
            return _after(alert.held_at, terms.hold.seconds)
        keeping = terms.keep_firing
        if alert.state is State.RECOVERING and isinstance(keeping, Seconds) and alert.since_at is not None:
            return _after(alert.since_at, keeping.seconds)
        return None

    def _pulse(self, pulse: Pulse) -> None:
        """A run that has finished has all that fires ended with it, and said once."""
        if pulse.state != "finished" or self._last_step is None:
            self._watch.pulse(pulse, self._hear)
            return
        if self._asked:
            # That it is not late any more is not what ends it.
            self._end(pulse.at, self._last_step)
        if not is_over(self._watch.alerts[0], self._last_step):
            self._watch.pulse(pulse, self._hear)
            self._end(pulse.at, self._last_step)

    def _end(self, at: float, step: int) -> None:
        alert = self._watch.alerts[0]
        if alert.is_open or (alert.state is State.PENDING and not self._is_timed):
            alert, transition = ended(alert, step, at, RUN_ENDED)
            self._watch.put(0, self._hear(0, alert, transition))

    def _hear(self, _: int, alert: Alert, transition: Transition) -> Alert:
        firings = self._firings
        if transition.after is State.RESOLVED:
            firings[-1] = msgspec.structs.replace(firings[-1], until_step=transition.step, until_at=transition.at)
        elif transition.after is State.FIRING and transition.firing > len(firings):
            begun = transition.firing, transition.step, transition.at
            firings.append(Firing(*begun, alert.held_step, transition.value, transition.culprit))
        return alert


def _after(since: float, seconds: float) -> float:
    """The first moment that is ``seconds`` later, as floats subtract."""
    at = since + seconds
    return at if at - since >= seconds else math.nextafter(at, math.inf)
