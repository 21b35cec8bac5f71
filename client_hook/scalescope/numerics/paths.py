"""Which of two ways is taken: the fast one while it works, for good the one that always works once it failed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from scalescope.numerics.elsewhere import CompileError

T = TypeVar("T")
R = TypeVar("R")


class Path(NamedTuple):
    """The way in use, by its name; and why no faster one is, "" where there is none."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})" if self.reason else self.name


class Faster(Generic[T]):
    """A way that has to be built first, may not be there, and may fail on this machine.

    Attributes:
        reason: why it is not in use; "" while it is.
        settled: set once it is in use or given up.
    """

    def __init__(self, name: str, build: Callable[[], T]) -> None:
        self.name = name
        self.reason = "not asked for: nothing measured was large"
        self.settled = threading.Event()
        self._build = build
        self._built: T | None = None
        self._asked = False

    def ask(self) -> None:
        """Have it built, in a thread of its own. Once."""
        if not self._asked:
            self._asked = True
            self.reason = "on its way"
            threading.Thread(target=self._settle, name=f"scalescope-{self.name}", daemon=True).start()

    def attempt(self, way: Callable[[T], R]) -> R | None:
        """What ``way`` answers with what was built; None if that is not in use. One that raises is given up."""
        if self._built is None or self.reason:
            return None
        built = self._built
        return self._tried(lambda: way(built))

    def path(self, other: str) -> Path:
        """What is used: it, or the ``other``."""
        return Path(other, f"{self.name}: {self.reason}") if self.reason else Path(self.name, "")

    def _settle(self) -> None:
        self._built = self._tried(self._build)
        if self._built is not None:
            self.reason = ""
        self.settled.set()

    def _tried(self, way: Callable[[], R]) -> R | None:
        try:
            return way()
        except Exception as error:  # noqa: BLE001 - compilers and drivers: whatever fails, the other way is there
            self.reason = str(error) if isinstance(error, CompileError) else f"{type(error).__name__}: {error}"
            return None
