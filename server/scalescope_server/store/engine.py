"""Opening the store: connections, pragmas and transactions of SQLite, and the writer and reader on top.

All SQL that only SQLite understands is here.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DatabaseError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from scalescope_server.store import schema
from scalescope_server.store.errors import SchemaError, StoreError, Unavailable
from scalescope_server.store.json_text import dumps
from scalescope_server.store.location import database_file
from scalescope_server.store.outages import outage
from scalescope_server.store.reader import Reader
from scalescope_server.store.writer import Writer

# How long a statement waits for another process's lock before it fails.
BUSY_MS = 5000
# Short read transactions at once; a page needs one for a few milliseconds.
READERS = 16
SILENT_AFTER_S = 60.0


class Store:
    """An open database: ``writer`` puts things in, ``reader`` gets them out. Close it to write what waits."""

    def __init__(self, writing: Engine, reading: Engine, *, clock: Callable[[], float], silent_after_s: float) -> None:
        self._writing = writing
        self._reading = reading
        self.writer = Writer(writing)
        self.reader = Reader(reading, clock=clock, silent_after_s=silent_after_s)

    def is_ready(self) -> bool:
        """Whether the database is at this program's revision. Raises :class:`Unavailable` if it cannot be read."""
        try:
            with self._reading.connect() as connection:
                return schema.is_current(connection)
        except SQLAlchemyError as error:
            if told := outage(error):
                raise told from error
            raise

    def close(self) -> None:
        self.writer.close()
        self._writing.dispose()
        self._reading.dispose()


def open_store(url: str, *, clock: Callable[[], float] = time.time, silent_after_s: float = SILENT_AFTER_S) -> Store:
    """The store at ``url``: ``sqlite:///PATH`` or a bare path; made, or brought to the newest revision.

    ``silent_after_s``: a run that has not ended and gave no sign of life for so long is ``silent``.

    Raises:
        SchemaError: if the file is no database, another program's, or of a newer version.
        Unavailable: if it cannot be opened or written.
    """
    file = database_file(url)
    _make_file(file)
    found = URL.create("sqlite", database=str(file))
    writing, reading = _engine(found, begin="BEGIN IMMEDIATE"), _engine(found, begin="BEGIN")
    event.listen(reading, "connect", _only_read)
    try:
        _migrate(writing, found)
    except StoreError:
        writing.dispose()
        raise
    return Store(writing, reading, clock=clock, silent_after_s=silent_after_s)


def _migrate(writing: Engine, url: URL) -> None:
    try:
        with writing.begin() as connection:
            schema.upgrade(connection)
    except OperationalError as error:
        raise Unavailable(f"the database {url.database} could not be opened: {error.orig}") from error
    except DatabaseError as error:
        raise SchemaError(f"expected a database, got {url.database}, which is no SQLite database") from error


def _make_file(path: Path) -> None:
    """Telemetry is for its owner: what SQLite puts beside the file gets the file's mode."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError as error:
        raise Unavailable(f"the database {path} could not be made: {error.strerror}") from error


def _engine(url: URL, *, begin: str) -> Engine:
    engine = create_engine(
        url, poolclass=QueuePool, pool_size=READERS, max_overflow=0, json_serializer=dumps, pool_timeout=BUSY_MS / 1000
    )

    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", start)
    return engine


def _configure(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    assert isinstance(connection, sqlite3.Connection)
    # The driver would begin transactions by itself, late and deferred; the listener on "begin" does instead.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    # Readers and the writer do not wait for one another; a commit is on the disk when it returns.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _only_read(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    connection.cursor().execute("PRAGMA query_only = ON")
