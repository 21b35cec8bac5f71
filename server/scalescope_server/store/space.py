"""What a database takes on the disk, and what of that is free for what comes next."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from msgspec import Struct
from sqlalchemy import Connection, func, select

from scalescope_server.store.errors import Unavailable


class Space(Struct, frozen=True):
    """Bytes. ``free``: of them, kept by the database for what comes next; None where it does not tell."""

    taken: int
    free: int | None


def read_space(connection: Connection) -> Space:
    """The space of the database that is connected to."""
    if connection.dialect.name == "postgresql":
        size = select(func.pg_database_size(func.current_database()))
        return Space(int(connection.execute(size).scalar_one()), None)
    page, pages, free = (
        int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
        for name in ("page_size", "page_count", "freelist_count")
    )
    return Space(page * pages, page * free)


def compact(file: Path) -> None:
    """Give what is free in a SQLite file back to the system. Nobody may use it meanwhile, and it is written anew whole.

    Raises:
        Unavailable: if it is in use, or there is no room for the new one beside it.
    """
    try:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise Unavailable(f"the database {file} could not be compacted: {error}") from error
