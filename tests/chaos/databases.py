"""The databases that chaos is made with: how each is locked, filled and killed from outside."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Protocol

import psycopg

from tests.postgres import Cluster, cluster

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

    def wound(self) -> None:
        """End one of its processes, after which it comes back by itself."""
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

    wound = kill

    @contextmanager
    def locked(self) -> Iterator[None]:
        with closing(sqlite3.connect(self.url, isolation_level=None, timeout=20)) as other:
            other.execute("BEGIN EXCLUSIVE")
            yield
            other.execute("ROLLBACK")

    def full(self, server: int) -> AbstractContextManager[None]:
        return bounded_files([server])


class PostgresCluster:
    """A PostgreSQL of its own, which writes to the disk what it acknowledges."""

    name = "postgres"
    mortal = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.url = cluster.new(cluster.template)

    def start(self) -> None:
        self._cluster.start()

    def kill(self) -> None:
        self._cluster.kill()

    def wound(self) -> None:
        found = self._cluster.run("SELECT pid FROM pg_stat_activity WHERE application_name = 'scalescope' LIMIT 1")
        for (process,) in found:
            os.kill(int(str(process)), signal.SIGKILL)

    @contextmanager
    def locked(self) -> Iterator[None]:
        with psycopg.connect(self.url) as other:
            other.execute("LOCK TABLE run, step, ledger IN ACCESS EXCLUSIVE MODE")
            yield
            other.rollback()

    @contextmanager
    def full(self, server: int) -> Iterator[None]:
        """It panics where it cannot write ahead, and is started again once there is room."""
        with bounded_files(self._cluster.processes(), self._cluster.user):
            yield
        if not self._cluster.running:
            self._cluster.start()


@contextmanager
def sqlite_file(folder: Path) -> Iterator[Database]:
    yield SqliteFile(folder)


@contextmanager
def postgres_cluster(_: Path) -> Iterator[Database]:
    with cluster(durable=True) as running:
        yield PostgresCluster(running)


@contextmanager
def bounded_files(processes: Sequence[int], user: str | None = None) -> Iterator[None]:
    """Let these processes write no file beyond its first ``FULL_BYTES``: what a disk without room comes to.

    ``user``: theirs, where it is not ours.
    """
    for process in processes:
        _bound(process, str(FULL_BYTES), user)
    try:
        yield
    finally:
        for process in processes:
            _bound(process, "unlimited", user)


def _bound(process: int, size: str, user: str | None) -> None:
    """Not by root's own right, which containers lack. The process may be gone."""
    command = ["prlimit", "--pid", str(process), f"--fsize={size}:"]
    done = subprocess.run(command, user=user, capture_output=True, check=False, text=True)
    if done.returncode and Path(f"/proc/{process}").exists():
        raise RuntimeError(done.stderr)
