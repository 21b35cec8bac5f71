"""Which records of one (run, segment, rank) are stored, by their sequence numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ledger:
    """Which sequences of one (run, segment, rank) are stored: sorted, disjoint ranges, both ends included."""

    ranges: tuple[tuple[int, int], ...] = ()

    @property
    def received(self) -> int:
        """How many different records are stored."""
        return sum(end - start + 1 for start, end in self.ranges)

    @property
    def highest(self) -> int:
        """The highest stored sequence, -1 for none."""
        return self.ranges[-1][1] if self.ranges else -1

    @property
    def contiguous(self) -> int:
        """Every sequence up to this one is stored; -1 for none."""
        return self.ranges[0][1] if self.ranges and self.ranges[0][0] == 0 else -1

    @property
    def missing(self) -> int:
        """Sequences below the highest that are not stored: dropped by the trainer, on their way, or lost."""
        return self.highest + 1 - self.received

    def __contains__(self, sequence: int) -> bool:
        return any(start <= sequence <= end for start, end in self.ranges)

    def add(self, sequence: int) -> Ledger:
        """The ledger with ``sequence`` entered (itself when it was there already)."""
        return self.add_range(sequence, sequence)

    def add_range(self, first: int, last: int) -> Ledger:
        """The ledger with every sequence from ``first`` to ``last`` entered, those that were there included."""
        # Ranges that touch it become one with it.
        before = [r for r in self.ranges if r[1] < first - 1]
        after = [r for r in self.ranges if r[0] > last + 1]
        met = self.ranges[len(before) : len(self.ranges) - len(after)]
        start, end = min(first, met[0][0] if met else first), max(last, met[-1][1] if met else last)
        return Ledger((*before, (start, end), *after))
