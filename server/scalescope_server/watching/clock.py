"""The time of updates, which goes forward: that of the trainer's clock, without what a clock cannot have seen pass.

Where it is set back, or within one start ahead by more than a day, no time passes between two updates; from there on it
goes on as it was set. Which update that was at is remembered, so that windows that are restored say the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from scalescope_server.rules.stretch import Stretch
from scalescope_server.store.axis import LEAP_S
from scalescope_server.store.judging import Position

# From an update on so many seconds are added to what the trainer says.
Shift = tuple[Position, float]
# How many are remembered of a run; a clock that is put right a little is not.
MOST_SHIFTS = 64
LITTLE_S = 1.0


class Clock:
    """``shifts``: as they are remembered."""

    def __init__(self, shifts: Sequence[Shift] = ()) -> None:
        self.shifts = tuple(shifts)
        self._last: tuple[int, float] | None = None

    def past(self, stretch: Stretch) -> Stretch:
        """Updates of the past, at their times. The last of them is the one that the next follows."""
        self._note(stretch)
        if not self.shifts:
            return stretch
        firsts = [position for position, _ in self.shifts]
        added = np.zeros(len(stretch))
        for (segment, first), (_, shift) in zip(firsts, self.shifts, strict=True):
            later = (stretch.segment > segment) | ((stretch.segment == segment) & (stretch.step >= first))
            added[later] = shift
        return msgspec.structs.replace(stretch, at=stretch.at + added)

    def forward(self, stretch: Stretch) -> Stretch:
        """Updates that follow, at their times."""
        for index in self._leaps(stretch):
            leap = float(stretch.at[index]) - (float(stretch.at[index - 1]) if index else self._before(stretch))
            position = Position(int(stretch.segment[index]), int(stretch.step[index]))
            self.shifts = (*self.shifts, (position, self._shift - leap))[-MOST_SHIFTS:]
        return self.past(stretch)

    def later(self, last: float, told: float | None) -> float:
        """The time of what the trainer ``told`` after its update at ``last``."""
        return last if told is None else max(last, told + self._shift)

    def shift_after(self, segment: int) -> float:
        """How many seconds are added as a start ends, of which all updates were seen."""
        return next((shift for position, shift in reversed(self.shifts) if position.segment <= segment), 0.0)

    @property
    def _shift(self) -> float:
        return self.shifts[-1][1] if self.shifts else 0.0

    def _leaps(self, stretch: Stretch) -> list[int]:
        """At which updates its clock had been set otherwise than at the one before."""
        passed = np.diff(stretch.at, prepend=self._before(stretch))
        within = np.ones(len(stretch), np.bool_)
        within[0] = self._last is not None and self._last[0] == stretch.segment[0]
        leaps: NDArray[np.bool_] = (passed < -LITTLE_S) | (within & (passed > LEAP_S))
        return np.flatnonzero(leaps).tolist()

    def _before(self, stretch: Stretch) -> float:
        return float(stretch.at[0]) if self._last is None else self._last[1]

    def _note(self, stretch: Stretch) -> None:
        self._last = int(stretch.segment[-1]), float(stretch.at[-1])
