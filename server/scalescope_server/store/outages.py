"""Failures of the database itself, told apart from mistakes in what was asked of it, and from servers that met."""

from __future__ import annotations

import re
import sqlite3

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from scalescope_server.store.errors import Unavailable

# These say that a statement or its values are wrong: the next database would refuse them too.
_MISTAKES = (DataError, IntegrityError, ProgrammingError)
# Two servers wrote the same: a deadlock, a serialization failure, or both entered what was new to them.
_MEETINGS = frozenset({"40P01", "40001", "23505"})
_LOCK_NOT_AVAILABLE = "55P03"
# A full disk, and a file that cannot be written.
_NO_ROOM = frozenset({"53100", "58030"})


def outage(error: BaseException | None) -> Unavailable | None:
    """What to tell a caller when ``error`` means a database that is locked, full, damaged or gone; else None."""
    if isinstance(error, DBAPIError) and not isinstance(error, _MISTAKES):
        return Unavailable(f"the database does not answer: {reason(error)}")
    if isinstance(error, PoolTimeout):
        return Unavailable("the database does not answer: every connection is taken")
    return None


def is_of_values(error: BaseException) -> bool:
    """Whether the database cannot hold a value that it was given: it will not hold it the next time either."""
    # A number beyond 64 bits the driver of SQLite refuses by itself.
    return isinstance(error, DataError | OverflowError)


def is_meeting(error: BaseException) -> bool:
    """Whether the same transaction may succeed when it is run again, since it met another server's."""
    return sqlstate(error) in _MEETINGS


def is_of_waiting(error: BaseException) -> bool:
    """Whether a lock was not to be had in time."""
    return sqlstate(error) == _LOCK_NOT_AVAILABLE


def is_of_room(error: BaseException) -> bool:
    """Whether there was no room on the disk: less may still fit."""
    code = getattr(error.orig, "sqlite_errorcode", None) if isinstance(error, DBAPIError) else None
    primary = None if code is None else code & 0xFF
    return primary in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR) or sqlstate(error) in _NO_ROOM


def sqlstate(error: BaseException) -> str | None:
    """Postgres's code for ``error``; None where it has none, as on SQLite."""
    found: str | None = getattr(error.orig, "sqlstate", None) if isinstance(error, DBAPIError) else None
    return found


def reason(error: DBAPIError) -> str:
    """What the driver says, in one line: of several attempts to connect the last one's."""
    told = str(error.orig).strip()
    refusals = re.findall(r"FATAL:\s+(.+)", told) or re.findall(r"failed: (?!.*failed: )(.+)", told)
    return str(refusals[-1] if refusals else told.partition("\n")[0])
