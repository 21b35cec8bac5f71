"""Smallest and largest: a queue of the values that may yet be it (Lemire 2006, arXiv:cs/0610046)."""

from __future__ import annotations

from collections import deque


class Max:
    """The largest value. The queue falls from its head, which is the answer; each value enters and leaves it once."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[tuple[float, float]] = deque()

    def push(self, key: float, value: float, oldest: float) -> float | None:
        queue = self._queue
        while queue and queue[-1][1] <= value:
            queue.pop()
        queue.append((key, value))
        return self.slide(oldest)

    def slide(self, oldest: float) -> float | None:
        queue = self._queue
        while queue and queue[0][0] <= oldest:
            queue.popleft()
        return queue[0][1] if queue else None


class Min:
    """The smallest value: that whose negative is the largest."""

    __slots__ = ("_negatives",)

    def __init__(self) -> None:
        self._negatives = Max()

    def push(self, key: float, value: float, oldest: float) -> float | None:
        return _negated(self._negatives.push(key, -value, oldest))

    def slide(self, oldest: float) -> float | None:
        return _negated(self._negatives.slide(oldest))


def _negated(value: float | None) -> float | None:
    return None if value is None else -value
