"""Which clock a scheduler follows: attempted or applied updates.

Only an update that was skipped tells them apart: a scheduler that steps there too follows attempts. It tells so
of one that steps at every other update; one that rests at an applied update follows something else, epochs say.
"""

from __future__ import annotations

from typing import Literal

from scalescope.readback import at_hand
from scalescope.taps.windows.windows import UpdateFacts
from scalescope.updates import Update

Follows = Literal["attempted", "applied", "unknown"]


class Clock:
    """Counts the steps of one scheduler, and what they tell of it. Updates are judged in order, each once."""

    def __init__(self, name: str, optimizer: str | None) -> None:
        self.name = name
        self._optimizer = optimizer
        self.steps = 0
        # Steps of the update that is not judged yet.
        self.recent = 0
        self._rested = False
        # Whether it stepped at an update that was skipped.
        self._at_skips: set[bool] = set()

    def step(self) -> None:
        self.steps += 1
        self.recent += 1

    def judge(self, update: Update) -> None:
        """``update`` is over. One in which the scheduler's optimizer took no part tells nothing of it."""
        facts = update.facts
        if self._optimizer is not None and isinstance(facts, UpdateFacts) and self._optimizer not in facts.windows:
            return
        skipped = _skipped(update, self._optimizer)
        if skipped:
            self._at_skips.add(self.recent > 0)
        elif skipped is False and not self.recent:
            self._rested = True
        self.recent = 0

    @property
    def follows(self) -> Follows:
        if self._rested or len(self._at_skips) != 1:
            return "unknown"
        return "attempted" if True in self._at_skips else "applied"


def _skipped(update: Update, optimizer: str | None) -> bool | None:
    """Whether ``update`` was skipped, for one optimizer or for any; None where the host does not know yet."""
    verdicts = [verdict for verdict in update.verdicts if optimizer is None or verdict.optimizer == optimizer]
    if any(at_hand(value) is None for verdict in verdicts for value in verdict.found):
        return None
    return any(verdict.skipped() for verdict in verdicts)


class Schedules:
    """The clocks of the schedulers that step a training's rates. The one that stepped most is told of."""

    def __init__(self, given: object = None) -> None:
        # Who names one knows better than we which one counts.
        self._given = given
        self.clocks: dict[int, Clock] = {}

    def hear(self, scheduler: object, optimizer: str | None) -> None:
        """``scheduler`` stepped, that of the watched ``optimizer``; None where it is of none."""
        if scheduler is not self._given and (self._given is not None or optimizer is None):
            return
        clock = self.clocks.get(id(scheduler))
        if clock is None:
            clock = self.clocks[id(scheduler)] = Clock(type(scheduler).__name__, optimizer)
        clock.step()

    def finish(self, update: Update) -> None:
        """Nothing is added to ``update`` any more: tell the steps that were made since its backward began."""
        clock = max(self.clocks.values(), key=lambda clock: clock.steps)
        steps = clock.recent
        for each in self.clocks.values():
            each.judge(update)
        update.values["scheduler_steps"] = float(clock.steps)
        if isinstance(update.facts, UpdateFacts):
            update.facts.schedule = {"class": clock.name, "steps": steps, "follows": clock.follows}
