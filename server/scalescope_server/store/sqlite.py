"""A SQLite file: its connections, pragmas and transactions."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from scalescope_server.store import schema
from scalescope_server.store.backend import Told, untold
from scalescope_server.store.errors import SchemaError, Unavailable
from scalescope_server.store.json_text import dumps
from scalescope_server.store.telegrams import Alone, Telegraph

# How long a statement waits for another process's lock before it fails.
BUSY_MS = 5000
# Short read transactions at once; a page needs one for a few milliseconds.
READERS = 16
# What the writer keeps of the file, in KiB: all that one batch changes, so that nothing of it is written out and read
# back before the commit.
WRITER_CACHE_KIB = 16 * 1024
# Pages in the log, 16 MB, before they go into the file: those that change with every commit go there less often.
LOG_PAGES = 4096
# Between two looks at how far a copy is: 16 MB.
COPIED_PAGES = 4096


@dataclass(frozen=True, slots=True)
class Sqlite:
    """The database in one file, made where it is not there; one server at a time."""

    file: Path
    shared = False

    def __str__(self) -> str:
        return str(self.file)

    def writing(self) -> Engine:
        engine = self._engine(begin="BEGIN IMMEDIATE")
        event.listen(engine, "connect", _write_much)
        return engine

    def reading(self) -> Engine:
        engine = self._engine(begin="BEGIN")
        event.listen(engine, "connect", _only_read)
        return engine

    def admit_writing(self, connection: Connection) -> None:
        """Nobody migrates it beside a server."""

    def telegraph(self) -> Telegraph:
        return Alone()

    def prepare(self, writing: Engine) -> None:
        # To read is enough for who only wants to: another process may be writing for long.
        if not (self.file.exists() and schema.finds_current(self.reading())):
            self.migrate(writing)

    def migrate(self, writing: Engine, told: Told = untold) -> str:
        _make_file(self.file)
        try:
            with writing.begin() as connection:
                found = schema.outdated(connection)
                # The transaction keeps others from writing meanwhile.
                kept = None if found is None else _keep(self.file, found, told)
                schema.upgrade(connection, on_revision=lambda done, of: told("revisions", done, of))
        except OperationalError as error:
            raise Unavailable(f"the database {self.file} could not be opened: {error.orig}") from error
        except DatabaseError as error:
            raise SchemaError(f"expected a database, got {self.file}, which is no SQLite database") from error
        return f"{self.file} is up to date." + ("" if kept is None else f" As it was before it is kept in {kept}.")

    def _engine(self, *, begin: str) -> Engine:
        engine = create_engine(
            URL.create("sqlite", database=str(self.file)),
            poolclass=QueuePool,
            pool_size=READERS,
            max_overflow=0,
            json_serializer=dumps,
            pool_timeout=BUSY_MS / 1000,
        )

        def start(connection: Connection) -> None:
            connection.exec_driver_sql(begin)

        event.listen(engine, "connect", _configure)
        event.listen(engine, "begin", start)
        return engine


def _make_file(path: Path) -> None:
    """Telemetry is for its owner: what SQLite puts beside the file gets the file's mode."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError as error:
        raise Unavailable(f"the database {path} could not be made: {error.strerror}") from error


def _keep(file: Path, revision: str, told: Told) -> Path:
    """Copy the database as it is committed to a file beside it, named after the revision it is at.

    Raises:
        Unavailable: if there is no room for it.
    """
    kept, partial = (file.with_name(f"{file.name}.{revision}{end}") for end in (".backup", ".partial"))
    try:
        partial.touch(mode=0o600)
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(partial)) as target:
            source.backup(target, pages=COPIED_PAGES, progress=lambda _, left, of: told("pages copied", of - left, of))
        # Whole or not at all: what a copy that was cut short left behind has another name.
        partial.replace(kept)
    except (OSError, sqlite3.Error) as error:
        raise Unavailable(f"the database {file} could not be copied to {kept} before its upgrade: {error}") from error
    return kept


def _configure(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    assert isinstance(connection, sqlite3.Connection)
    # The driver would begin transactions by itself, late and deferred; the listener on "begin" does instead.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    # Readers and the writer do not wait for one another; a commit is on the disk when it returns.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _write_much(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    connection.cursor().execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
    connection.cursor().execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")


def _only_read(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    connection.cursor().execute("PRAGMA query_only = ON")
