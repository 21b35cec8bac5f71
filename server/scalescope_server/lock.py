"""One server for one SQLite file: an advisory lock on a file beside it, gone with the process that holds it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from scalescope_server.errors import UnavailableError
from scalescope_server.store.engine import Store, is_current, open_store
from scalescope_server.store.location import sqlite_file

if sys.platform == "win32":
    import msvcrt

    def _take(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _take(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def locked(database: Path) -> Iterator[None]:
    """Hold the place of the one server of ``database``.

    Raises:
        UnavailableError: if another process holds it, or nothing can be written there.
    """
    with _opened(database.with_name(database.name + ".lock")) as file:
        try:
            _take(file.fileno())
        except OSError as error:
            raise UnavailableError(
                f"another server is using {database}: stop it, or give this one another --database "
                "(several servers can share a database only on Postgres)"
            ) from error
        yield


def _opened(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a")
    except OSError as error:
        raise UnavailableError(f"{path} could not be written, beside the database: {error.strerror}") from error


def open_beside(database: str) -> Store:
    """The store at ``database``, which a server may be using.

    A SQLite file of an older version is upgraded as it is opened, but under no server of that version.

    Raises:
        UnavailableError: if one uses such a file.
        StoreError: as :func:`open_store` says.
    """
    file = sqlite_file(database)
    with contextlib.nullcontext() if file is None or is_current(database) else locked(file):
        return open_store(database)
