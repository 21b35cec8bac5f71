"""A rule tried on the past: the evaluator and the states that judge live, over updates that are stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec
import numpy as np
from msgspec import Struct

from scalescope_server.rules.alert import Alert, State, Transition
from scalescope_server.rules.compiled import Compiled
from scalescope_server.rules.dependence import silences
from scalescope_server.rules.expression import Seconds
from scalescope_server.rules.stretch import Stretch
from scalescope_server.rules.ticks import Pulse
from scalescope_server.rules.watch import Watch


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


def backtest(rule: Compiled, past: Iterable[Stretch], *, now: Pulse | None = None) -> Backtest:
    """What ``rule`` would have done over ``past``, in order.

    Where nothing came for as long as it asks for, time is made to pass as it did; ``now`` is the moment after the last
    update. Errors of evaluation are in the answer.
    """
    watch = Watch([rule])
    found: list[Firing] = []
    updates, last = 0, None

    def hear(_: int, alert: Alert, transition: Transition) -> Alert:
        _note(found, alert, transition)
        return alert

    for moment in _with_silences(rule, past, now):
        if isinstance(moment, Pulse):
            watch.pulse(moment, hear)
        else:
            watch.stretch(moment, hear)
            updates, last = updates + len(moment), (int(moment.step[-1]), float(moment.at[-1]))
    step, at = last or (None, None)
    return Backtest(tuple(found), watch.alerts[0], updates, step, at, rule.error)


def _note(found: list[Firing], alert: Alert, transition: Transition) -> None:
    if transition.after is State.RESOLVED:
        found[-1] = msgspec.structs.replace(found[-1], until_step=transition.step, until_at=transition.at)
    elif transition.after is State.FIRING and transition.firing > len(found):
        found.append(
            Firing(
                transition.firing,
                transition.step,
                transition.at,
                alert.held_step,
                transition.value,
                transition.culprit,
            )
        )


def _with_silences(rule: Compiled, past: Iterable[Stretch], now: Pulse | None) -> Iterator[Stretch | Pulse]:
    """``past``, and the pulses at which the rule would have been looked at while no update came."""
    after_s = _moments(rule)
    last_at: float | None = None
    for stretch in past:
        if not len(stretch):
            continue
        for part in _parts(stretch, after_s):
            if last_at is not None:
                yield from _pulses(last_at, float(part.at[0]), after_s)
            yield part
            last_at = float(part.at[-1])
    if now is not None and rule.needs.pulses:
        yield from _pulses(last_at, now.at, after_s if now.state != "finished" else ())
        yield now


def _moments(rule: Compiled) -> tuple[float, ...]:
    """After so many seconds of silence something may happen: what is asked for, and its ``for`` on top."""
    if rule.condition is None:
        return ()
    asked, hold = silences(rule.condition), rule.terms.hold
    held = {within + hold.seconds for within in asked} if isinstance(hold, Seconds) else set()
    return tuple(sorted(asked | held))


def _parts(stretch: Stretch, after_s: tuple[float, ...]) -> Iterator[Stretch]:
    """``stretch`` cut where it was silent for as long as anything may happen."""
    if not after_s:
        yield stretch
        return
    silent = np.flatnonzero(np.diff(stretch.at) > after_s[0]) + 1
    edges = [0, *silent.tolist(), len(stretch)]
    for start, stop in pairwise(edges):
        yield stretch.part(start, stop)


def _pulses(last_at: float | None, until: float, after_s: Iterable[float]) -> Iterator[Pulse]:
    if last_at is not None:
        yield from (Pulse(last_at + after, last_at, "running") for after in after_s if last_at + after < until)
