"""Rules' conditions on one run, fed with its updates: what each says after every one of them.

What several conditions have in common is worked out once. The evaluator keeps no state but what its windows hold: it is
restored by seeing the updates of its ``lookback`` again, and then says what one says that was never interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scalescope_server.rules.compiling import Program
from scalescope_server.rules.expression import Condition
from scalescope_server.rules.signals.each import Each
from scalescope_server.rules.signals.signal import Now, Signal, Span
from scalescope_server.rules.signals.told import NumberSignal
from scalescope_server.rules.stretch import Stretch
from scalescope_server.rules.ticks import Pulse, Tick
from scalescope_server.rules.verdict import Answer, Verdict

# How ``answers`` tells them apart.
ANSWERS = (Answer.DOES_NOT, Answer.HOLDS, Answer.NO_DATA)


class Evaluator:
    """``roots``: the signal of each condition, in their order."""

    def __init__(self, conditions: Sequence[Condition]) -> None:
        program = Program()
        self.roots: list[Signal] = [program.signal(condition) for condition in conditions]
        # Whether any signal has a row of values, one for each layer or rank.
        self.has_rows = any(isinstance(signal, Each) for signal in program.order)
        self._order = program.order
        # A number is what it is from the first update on.
        self._ticking = [signal.tick for signal in program.order if not isinstance(signal, NumberSignal)]
        self._unseen = [signal for signal in program.order if isinstance(signal, NumberSignal)]
        self._timed = program.timed
        self._now = Now()
        # Whether the last move was by a stretch that is not settled.
        self._stretched = False
        self._last_step: int | None = None

    @property
    def size(self) -> int:
        """How many signals are worked out at each update."""
        return len(self._order)

    def tick(self, tick: Tick) -> None:
        """Move on by one update."""
        self.settle()
        now = self._now
        # Steps that nobody told of count: a window of 200 steps is 200 attempted updates. Where an older start of the
        # trainer reaches beyond the first step of the next one, an update is at least one.
        now.place += 1 if self._last_step is None else max(1, tick.step - self._last_step)
        now.at = max(now.at, tick.at)
        now.is_update, now.state, now.silent_s = True, "running", 0.0
        now.values, now.layers, now.ranks, now.findings = tick.values, tick.layers, tick.ranks, tick.findings
        self._last_step = tick.step
        for move_on in self._ticking:
            move_on(now)
        if self._unseen:
            self._rest()

    def pulse(self, pulse: Pulse) -> None:
        """Move on in time alone."""
        self.settle()
        now = self._now
        now.is_update, now.state = False, pulse.state
        now.silent_s = None if pulse.last_update_at is None else pulse.at - pulse.last_update_at
        for signal in self._timed:
            signal.tick(now)

    def stretch(self, stretch: Stretch) -> None:
        """Move on by all updates of ``stretch``, as if tick by tick."""
        if not len(stretch):
            return
        now = self._now
        before = int(stretch.step[0]) - 1 if self._last_step is None else self._last_step
        place = now.place + np.cumsum(np.maximum(1, np.diff(stretch.step, prepend=before)))
        span = Span(stretch, place, np.maximum.accumulate(np.maximum(stretch.at, now.at)))
        now.place, now.at, self._last_step = int(place[-1]), float(span.at[-1]), int(stretch.step[-1])
        for signal in self._order:
            signal.over(span)
        self._stretched = True
        self._rest()

    def settle(self) -> None:
        """Forget the updates of the last stretch: of what was said at them no more is asked."""
        if self._stretched:
            for signal in self._order:
                signal.settle()
        self._stretched = False

    def _rest(self) -> None:
        for number in self._unseen:
            number.moved = False
        self._unseen = []

    def verdict(self, index: int, at: int | None = None) -> Verdict:
        """What the condition ``index`` says after the last tick, or at the update ``at`` of the last stretch."""
        root = self.roots[index]
        value = root.at(at)
        if value is None:
            return Verdict(Answer.NO_DATA)
        evidence, culprit = root.evidence(at)
        return Verdict(Answer.HOLDS if value else Answer.DOES_NOT, evidence, culprit)

    def answers(self, index: int) -> NDArray[np.int8]:
        """What it says at each update of the last stretch, as places in ``ANSWERS``: int8[n]."""
        column = self.roots[index].column
        assert column is not None
        return np.where(column.known, column.values.astype(np.int8), np.int8(2)).astype(np.int8)
