"""When every update is looked at: for a bounded time after something went wrong.

A skip or a non-finite value makes the next few updates *dense*. What went wrong may only be known on a device
when an update closes, so it is asked for, never waited for, as later ones close. Of a device that cannot say when
a copy has arrived nothing is learnt here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from scalescope.readback import at_hand
from scalescope.updates import Measured, OptimizerVerdict

# How many updates are dense: a scale that is eight octaves too high settles in them, and a NaN that stays is seen
# in its origin and in all that it reached.
DENSE = 8
# The next such time begins no sooner, counted in updates from the beginning of the last: in a storm of skips at
# most one update in 32 is looked at because of it.
REST = 256
# Answers of a device that are awaited at once: a device is some updates behind, not dozens.
_AWAITED = 32

# Whether something went wrong; None where that is not known yet.
Question = Callable[[], bool | None]


class Trouble:
    """Knows of one training whether the update under way is ``dense``. Updates go by their number.

    ``together``: the samples of several ranks add up. Then what one of them sees makes nothing dense, which the others
    would not sample; a skip does, which all are told of.
    """

    def __init__(self) -> None:
        self.dense = self.together = False
        self._until = 0
        self._rested = 0
        self.awaited: deque[Question] = deque(maxlen=_AWAITED)

    def ask(self, question: Question) -> None:
        """Put ``question``, of what this rank sees, again as updates close, until it is answered."""
        if not self.together:
            self.awaited.append(question)

    def ask_of(self, verdicts: Sequence[OptimizerVerdict], measured: Sequence[Measured]) -> None:
        """Heed what was found of an update."""
        for verdict in verdicts:
            for value in verdict.found:
                # The usual one first: this runs at every update.
                if value != 0.0:
                    self.awaited.append(partial(_overflowed, verdicts))
                    break
        if measured:
            self.ask(partial(_nonfinite, measured))

    def heed(self, step: int) -> None:
        """Hear what is known by now; ``step`` is the update that begins."""
        while self.awaited:
            answer = self.awaited[0]()
            if answer is None:
                break
            self.awaited.popleft()
            if answer and step >= self._rested:
                self._until, self._rested = step + DENSE, step + REST
        self.dense = step < self._until


def _overflowed(verdicts: Sequence[OptimizerVerdict]) -> bool | None:
    found = [at_hand(value) for verdict in verdicts for value in verdict.found]
    return None if None in found else any(found)


def _nonfinite(measured: Sequence[Measured]) -> bool | None:
    found = [part.measurement.at_hand() for part in measured]
    whole = [table for table in found if table is not None]
    return None if len(whole) < len(found) else any(table.nonfinite.any() for table in whole)
