"""What is wrong with a rule: where, what was expected, what came, and what to do."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """A piece of a sentence: ``line`` and ``column`` from 1, ``start`` and ``end`` as offsets into its text."""

    line: int
    column: int
    start: int
    end: int


class SentenceError(ValueError):
    """A sentence that means nothing. ``advice``: what to write instead, "" where the expectation says it all."""

    def __init__(self, place: Place, *, expected: str, got: str, advice: str = "") -> None:
        self.place = place
        self.expected = expected
        self.got = got
        self.advice = advice
        super().__init__(f"line {place.line}, column {place.column}: {self.message}")

    @property
    def message(self) -> str:
        """Without the place, for whoever points at it."""
        told = f"expected {self.expected}, got {self.got}"
        return f"{told}: {self.advice}" if self.advice else told
