"""Which clock a scheduler follows: attempted or applied updates.

Only an update that was skipped tells them apart: a scheduler that steps there too follows attempts. It tells so
of one that steps at every other update; one that rests at an applied update follows something else, epochs say.
"""

from __future__ import annotations

from typing import Literal

from scalescope.taps.windows.windows import UpdateFacts
from scalescope.updates import Update

Follows = Literal["attempted", "applied", "unknown"]


class Clock:
    """Counts the steps of one scheduler, and what they tell of it. Updates are judged in order, each once."""

    def __init__(self, name: str, optimizer: str | None) -> None:
        self.name = name
        self._optimizer = optimizer
        self.steps = 0
        self._rested = False
        # Whether it stepped at an update that was skipped.
        self._at_skips: set[bool] = set()

    def judge(self, update: Update, steps: int) -> None:
        """``update`` is over, and so often it stepped there. An update without its optimizer tells nothing of it."""
        self.steps += steps
        facts = update.facts
        if self._optimizer is not None and isinstance(facts, UpdateFacts) and self._optimizer not in facts.windows:
            return
        if _skipped(update, self._optimizer):
            self._at_skips.add(steps > 0)
        elif not steps:
            self._rested = True

    @property
    def follows(self) -> Follows:
        if self._rested or len(self._at_skips) != 1:
            return "unknown"
        return "attempted" if True in self._at_skips else "applied"


def _skipped(update: Update, optimizer: str | None) -> bool:
    """Whether ``update`` was skipped, for one optimizer or for any."""
    return any(verdict.skipped() for verdict in update.verdicts if optimizer is None or verdict.optimizer == optimizer)


class Schedules:
    """The clocks of the schedulers that step a training's rates. The one that stepped most is told of.

    Steps are heard in the training thread and judged in the link's, when all numbers of their update are known.
    """

    def __init__(self, given: object = None) -> None:
        # Who names one knows better than we which one counts.
        self._given = given
        self._clocks: dict[int, Clock] = {}
        # Whether any was heard.
        self.heard = False

    def hear(self, scheduler: object, optimizer: str | None, update: Update) -> None:
        """``scheduler`` stepped in ``update``, that of the watched ``optimizer``; None where it is of none."""
        if scheduler is not self._given and (self._given is not None or optimizer is None):
            return
        key = id(scheduler)
        if key not in self._clocks:
            self.heard = True
            self._clocks[key] = Clock(type(scheduler).__name__, optimizer)
        update.schedules = self
        if update.scheduled is None:
            update.scheduled = {}
        update.scheduled[key] = update.scheduled.get(key, 0) + 1

    def finish(self, update: Update) -> None:
        """Nothing is added to ``update`` any more, and all its numbers are here: tell what schedulers did in it."""
        # A copy, made at once: the training thread may hear another one meanwhile.
        clocks = dict(self._clocks)
        scheduled = update.scheduled or {}
        for key, clock in clocks.items():
            clock.judge(update, scheduled.get(key, 0))
        key, clock = max(clocks.items(), key=lambda item: item[1].steps)
        update.values["scheduler_steps"] = float(clock.steps)
        steps = scheduled.get(key, 0)
        update.schedule = {"class": clock.name, "steps": steps, "follows": clock.follows}
