"""How much by second, and at how many updates a condition held."""

from __future__ import annotations

from collections import deque

from scalescope_server.rules.windows.exact import quotient
from scalescope_server.rules.windows.totals import Totals


class Rate(Totals):
    """The sum of the values after the oldest of the window, by second since that one.

    What is told at an update came about since the one before, so the oldest value has no time to belong to. Not
    known of fewer than two values, nor where no time has passed. ``at``: the time of the value that is pushed next, in
    seconds, since keys may count updates.
    """

    __slots__ = ("_times", "at")

    def __init__(self) -> None:
        super().__init__()
        self.at = 0.0
        self._times: deque[float] = deque()

    def _enter(self, number: int) -> None:
        self._total += number
        self._times.append(self.at)

    def _leave(self, number: int) -> None:
        self._total -= number
        self._times.popleft()

    def _value(self) -> float | None:
        passed = self._times[-1] - self._times[0]
        if passed <= 0.0:
            return None
        return quotient(self._total - self._entries[0][1], 1 << self._bits) / passed


class Count:
    """At how many updates of the window a condition held: 1 where it did, 0 where it did not."""

    __slots__ = ("_entries", "_held")

    def __init__(self) -> None:
        self._entries: deque[tuple[float, float]] = deque()
        self._held = 0.0

    def push(self, key: float, value: float, oldest: float) -> float | None:
        self._entries.append((key, value))
        self._held += value
        return self.slide(oldest)

    def slide(self, oldest: float) -> float | None:
        entries = self._entries
        while entries and entries[0][0] <= oldest:
            self._held -= entries.popleft()[1]
        return self._value() if entries else None

    def _value(self) -> float | None:
        return self._held


class Share(Count):
    """At which share of the updates in the window at which it was known the condition held."""

    __slots__ = ()

    def _value(self) -> float | None:
        return self._held / len(self._entries)
