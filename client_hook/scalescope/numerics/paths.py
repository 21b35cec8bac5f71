"""Which of two ways is taken: the fast one while it works, for good the one that always works once it failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Path(NamedTuple):
    """The way in use, by its name; and why no faster one is, "" where there is none."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})" if self.reason else self.name


class Faster:
    """A way that may not be there, or fail on this machine. Then training goes on, a little slower.

    ``reason`` says why it is not in use. "": it is.
    """

    def __init__(self, name: str, reason: str = "") -> None:
        self.name = name
        self.reason = reason

    def attempt(self, way: Callable[[], T]) -> T | None:
        """What ``way`` answers; None if it raises, which is not tried again."""
        try:
            return way()
        except Exception as error:  # noqa: BLE001 - compilers and drivers: whatever fails, the other way is there
            self.reason = f"{type(error).__name__}: {error}"
            return None

    def path(self, other: str) -> Path:
        """What is used: it, or the ``other``."""
        return Path(other, f"{self.name}: {self.reason}") if self.reason else Path(self.name, "")
