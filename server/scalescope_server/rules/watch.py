"""The rules of one run with their alerts: updates go in, transitions come out.

The judge keeps one for each run it judges; a backtest is one with a single rule and no past.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from scalescope_server.rules.alert import Alert, Transition, advance, settled_by
from scalescope_server.rules.compiled import Compiled
from scalescope_server.rules.evaluating import ANSWERS, Evaluator
from scalescope_server.rules.stretch import Stretch
from scalescope_server.rules.ticks import Pulse, Tick
from scalescope_server.rules.verdict import Answer, Verdict

# Told of each transition as it happens: which rule, and the alert after it. The alert to go on with is answered, so
# that what was told of it can be remembered there (see ``telling``).
Hear: TypeAlias = Callable[[int, Alert, Transition], Alert]

# So few are sooner judged one by one than by columns, which cost a signal some 10 us before they hold anything.
FEW_UPDATES = 32
# So many rows of values, one for each layer, are held of a signal; there is one for each update at most.
MOST_ROWS = 1024


class Watch:
    """``alerts``: that of each rule, in the order of ``rules``; new ones where none are given.

    ``few_updates``: a shorter stretch is judged update by update.
    """

    def __init__(
        self, rules: Sequence[Compiled], alerts: Sequence[Alert] = (), *, few_updates: int = FEW_UPDATES
    ) -> None:
        self.rules = tuple(rules)
        self.alerts = list(alerts) if alerts else [Alert()] * len(rules)
        self._few_updates = few_updates
        self._broken = [index for index, rule in enumerate(rules) if rule.condition is None]
        # Of those that can be evaluated, in the order in which they are.
        self._whole = [index for index, rule in enumerate(rules) if rule.condition is not None]
        self._evaluator = Evaluator([rule.condition for rule in rules if rule.condition is not None])
        # Which answer would change nothing of each alert: most updates say what the one before said.
        self._settled = [settled_by(self.alerts[index]) for index in self._whole]
        self._timed = [place for place, index in enumerate(self._whole) if rules[index].needs.pulses]

    def replay(self, past: Stretch) -> None:
        """See updates again that were judged before: nothing is judged by them."""
        for part in self._parts(past):
            self._evaluator.stretch(part)
        self._evaluator.settle()

    def tick(self, tick: Tick, hear: Hear) -> None:
        """Judge one update."""
        self._judge_broken(tick, hear)
        self._tick(tick, hear)

    def pulse(self, pulse: Pulse, hear: Hear) -> None:
        """Judge, by the rules that ask for it, that time has passed."""
        if self._timed:
            self._evaluator.pulse(pulse)
        for place in self._timed:
            self._judge(place, None, pulse, hear)

    def stretch(self, stretch: Stretch, hear: Hear) -> None:
        """Judge many updates, to the same end as tick by tick; ``hear`` is told by rules, and of each in order."""
        if not len(stretch):
            return
        self._judge_broken(tick_at(stretch, 0), hear)
        # Values of layers come as columns, and are judged so however few there are.
        if len(stretch) < self._few_updates and not stretch.layers:
            for tick in stretch.ticks():
                self._tick(tick, hear)
            return
        for part in self._parts(stretch):
            self._evaluator.stretch(part)
            for place in range(len(self._whole)):
                self._judge_all(place, part, hear)
        self._evaluator.settle()

    def put(self, index: int, alert: Alert) -> None:
        """Go on with ``alert``, which has been moved by other than a verdict."""
        self.alerts[index] = alert
        if index in self._whole:
            self._settled[self._whole.index(index)] = settled_by(alert)

    def _tick(self, tick: Tick, hear: Hear) -> None:
        evaluator, settled = self._evaluator, self._settled
        evaluator.tick(tick)
        for place, root in enumerate(evaluator.roots):
            value = root.value
            answer = Answer.NO_DATA if value is None else Answer.HOLDS if value else Answer.DOES_NOT
            if answer is not settled[place]:
                self._judge(place, None, tick, hear)

    def _parts(self, stretch: Stretch) -> Iterator[Stretch]:
        if not self._evaluator.has_rows:
            yield stretch
            return
        for start in range(0, len(stretch), MOST_ROWS):
            yield stretch.part(start, min(start + MOST_ROWS, len(stretch)))

    def _judge_all(self, place: int, stretch: Stretch, hear: Hear) -> None:
        """By each update of ``stretch`` that can change the alert: none while it is settled by an unchanged answer."""
        answers = self._evaluator.answers(place)
        starts = [0, *(np.flatnonzero(np.diff(answers)) + 1).tolist(), len(answers)]
        for start, stop in pairwise(starts):
            answer = ANSWERS[answers[start]]
            for at in range(start, stop):
                if answer is self._settled[place]:
                    break
                self._judge(place, at, tick_at(stretch, at), hear)

    def _judge(self, place: int, at: int | None, moment: Tick | Pulse, hear: Hear) -> None:
        index = self._whole[place]
        self._move(index, self._evaluator.verdict(place, at), moment, hear)
        self._settled[place] = settled_by(self.alerts[index])

    def _judge_broken(self, tick: Tick, hear: Hear) -> None:
        for index in self._broken:
            self._move(index, Verdict(Answer.ERROR, sentence=self.rules[index].error), tick, hear)

    def _move(self, index: int, verdict: Verdict, moment: Tick | Pulse, hear: Hear) -> None:
        """Move the alert of the rule ``index`` on by ``verdict``."""
        alert, transitions = advance(self.alerts[index], verdict, moment, self.rules[index].terms)
        for transition in transitions:
            alert = hear(index, alert, transition)
        self.alerts[index] = alert


def tick_at(stretch: Stretch, index: int) -> Tick:
    """When the update ``index`` was, and nothing of what it told."""
    return Tick(int(stretch.segment[index]), int(stretch.step[index]), float(stretch.at[index]), {})
