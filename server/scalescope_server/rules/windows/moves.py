"""How a series moves: from the window's first value to its last, and how often, and how often back."""

from __future__ import annotations

from collections import deque


class Last:
    """The newest value."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: tuple[float, float] | None = None

    def push(self, key: float, value: float, oldest: float) -> float | None:
        self._told = (key, value)
        return self.slide(oldest)

    def slide(self, oldest: float) -> float | None:
        told = self._told
        return None if told is None or told[0] <= oldest else told[1]


class Change:
    """The newest value less the oldest; not known of a single one."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: deque[tuple[float, float]] = deque()

    def push(self, key: float, value: float, oldest: float) -> float | None:
        self._entries.append((key, value))
        return self.slide(oldest)

    def slide(self, oldest: float) -> float | None:
        entries = self._entries
        while entries and entries[0][0] <= oldest:
            entries.popleft()
        return self._value() if len(entries) > 1 else None

    def _value(self) -> float | None:
        return self._entries[-1][1] - self._entries[0][1]


class _Moves:
    """The moves from one value to the next that differs from it, both in the window: (key of the first, upwards)."""

    __slots__ = ("_before", "_moves", "_reversals")

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None
        self._moves: deque[tuple[float, bool]] = deque()
        self._reversals = 0

    def push(self, key: float, value: float, oldest: float) -> float | None:
        before, self._before = self._before, (key, value)
        if before is not None and value != before[1]:
            upwards = value > before[1]
            if self._moves and self._moves[-1][1] is not upwards:
                self._reversals += 1
            self._moves.append((before[0], upwards))
        return self.slide(oldest)

    def slide(self, oldest: float) -> float | None:
        moves = self._moves
        while moves and moves[0][0] <= oldest:
            gone = moves.popleft()
            if moves and moves[0][1] is not gone[1]:
                self._reversals -= 1
        return None if self._before is None or self._before[0] <= oldest else self._value()

    def _value(self) -> float:
        raise NotImplementedError


class Changes(_Moves):
    """How often a value differs from the one told before it."""

    __slots__ = ()

    def _value(self) -> float:
        return float(len(self._moves))


class Reversals(_Moves):
    """How often a rise is followed by a fall, or a fall by a rise; equal values between them change nothing."""

    __slots__ = ()

    def _value(self) -> float:
        return float(self._reversals)
