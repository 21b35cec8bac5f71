"""Opening the store: the database's two engines, and the writer and reader on top."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import Engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from scalescope_server.store import schema
from scalescope_server.store.backend import Backend, Told, untold
from scalescope_server.store.errors import StoreError
from scalescope_server.store.location import database_file, postgres_url
from scalescope_server.store.outages import outage
from scalescope_server.store.postgres import Postgres
from scalescope_server.store.reader import Reader
from scalescope_server.store.sqlite import Sqlite
from scalescope_server.store.telegrams import Telegraph
from scalescope_server.store.writer import Writer

SILENT_AFTER_S = 60.0


class Store:
    """An open database: ``writer`` puts things in, ``reader`` gets them out. Close it to write what waits."""

    def __init__(
        self,
        backend: Backend,
        writing: Engine,
        reading: Engine,
        *,
        clock: Callable[[], float],
        silent_after_s: float,
    ) -> None:
        self._backend = backend
        self._writing = writing
        self._reading = reading
        self.writer = Writer(writing, backend.admit_writing, clock=clock)
        self.reader = Reader(reading, clock=clock, silent_after_s=silent_after_s)

    @property
    def shared(self) -> bool:
        """Whether other servers may use the database at the same time."""
        return self._backend.shared

    def telegraph(self) -> Telegraph:
        """A way to these other servers, to be started."""
        return self._backend.telegraph()

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
        for engine in (self._writing, self._reading):
            # Whoever is in the middle of a read comes to the end of it, and leaves no connection behind.
            event.listen(engine, "checkin", _let_go)
            engine.dispose()


def open_store(url: str, *, clock: Callable[[], float] = time.time, silent_after_s: float = SILENT_AFTER_S) -> Store:
    """The store at ``url``: ``sqlite:///PATH``, a bare path, or ``postgresql://USER:PASSWORD@HOST/NAME``.

    A SQLite file is made, or brought to the newest revision; Postgres is by :func:`migrate_store`.
    ``silent_after_s``: a run that has not ended and gave no sign of life for so long is ``silent``.

    Raises:
        SchemaError: if it is no database, another program's, of a newer version, or has to be migrated first.
        Unavailable: if it cannot be opened or written.
    """
    backend = backend_of(url)
    writing, reading = backend.writing(), backend.reading()
    try:
        backend.prepare(writing)
    except StoreError:
        writing.dispose()
        raise
    return Store(backend, writing, reading, clock=clock, silent_after_s=silent_after_s)


def migrate_store(url: str, told: Told = untold) -> str:
    """Make the tables of the database at ``url``, or bring them to this program's revision; a sentence says what is.

    Raises:
        SchemaError: if it is no database, another program's, or of a newer version.
        Unavailable: if it cannot be opened or written.
    """
    backend = backend_of(url)
    writing = backend.writing()
    try:
        return backend.migrate(writing, told)
    finally:
        writing.dispose()


def is_current(url: str) -> bool:
    """Whether the database at ``url`` is one at this program's revision, so that opening it changes nothing of it.

    Where it cannot be read opening it says why.
    """
    reading = backend_of(url).reading()
    try:
        return schema.finds_current(reading)
    finally:
        reading.dispose()


def backend_of(url: str) -> Backend:
    """The database at ``url``, not opened yet.

    Raises:
        SchemaError: if it is the address of none.
    """
    found = postgres_url(url)
    return Sqlite(database_file(url)) if found is None else Postgres(found)


def _let_go(_: object, entry: ConnectionPoolEntry) -> None:
    """Close a connection that is given back."""
    entry.invalidate()
