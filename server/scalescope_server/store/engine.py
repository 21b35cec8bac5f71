"""Opening the store: the database's two engines, and the writer and reader on top."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from scalescope_server.store import schema
from scalescope_server.store.backend import Backend
from scalescope_server.store.errors import StoreError
from scalescope_server.store.location import database_file
from scalescope_server.store.outages import outage
from scalescope_server.store.reader import Reader
from scalescope_server.store.sqlite import Sqlite
from scalescope_server.store.writer import Writer

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
    backend = backend_of(url)
    writing, reading = backend.writing(), backend.reading()
    try:
        backend.prepare(writing)
    except StoreError:
        writing.dispose()
        raise
    return Store(writing, reading, clock=clock, silent_after_s=silent_after_s)


def backend_of(url: str) -> Backend:
    """The database at ``url``, not opened yet.

    Raises:
        SchemaError: if it is the address of none.
    """
    return Sqlite(database_file(url))
