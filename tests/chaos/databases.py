"""The databases that chaos is made with: how each is locked, filled and killed from outside."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Protocol

# Where a file may be no longer than that, nothing is written that a database needs.
FULL_BYTES = 4096


class Database(Protocol):
    """One database of a stage. ``mortal``: it is a process that can be killed."""

    name: str
    url: str
    mortal: bool

    def start(self) -> None:
        """Start it, for the first time or after it was killed."""
        ...

    def kill(self) -> None:
        """End it as a power cut would."""
        ...

    def locked(self) -> AbstractContextManager[None]:
        """Another process writes, and does not come to an end."""
        ...

    def full(self, server: int) -> AbstractContextManager[None]:
        """Its disk takes nothing more. ``server``: the process that has it open."""
        ...


class SqliteFile:
    """A file on the real disk. Who writes it is the server, so it has no process of its own."""

    name = "sqlite"
    mortal = False

    def __init__(self, folder: Path) -> None:
        self.url = str(folder / "chaos.db")

    def start(self) -> None:
        """It is there when it is opened."""

    def kill(self) -> None:
        raise NotImplementedError("SQLite has no process: kill the server")

    @contextmanager
    def locked(self) -> Iterator[None]:
        with closing(sqlite3.connect(self.url, isolation_level=None, timeout=20)) as other:
            other.execute("BEGIN EXCLUSIVE")
            yield
            other.execute("ROLLBACK")

    def full(self, server: int) -> AbstractContextManager[None]:
        return bounded_files([server])


@contextmanager
def sqlite_file(folder: Path) -> Iterator[Database]:
    yield SqliteFile(folder)


@contextmanager
def bounded_files(processes: Sequence[int]) -> Iterator[None]:
    """Let these processes write no file beyond its first ``FULL_BYTES``: what a disk without room comes to."""
    before = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in processes}
    for pid, (_, hard) in before.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL_BYTES, hard))
    try:
        yield
    finally:
        for pid, limits in before.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
