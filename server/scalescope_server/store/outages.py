"""Failures of the database itself, told apart from mistakes in what was asked of it."""

from __future__ import annotations

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from scalescope_server.store.errors import Unavailable

# These say that a statement or its values are wrong: the next database would refuse them too.
_MISTAKES = (DataError, IntegrityError, ProgrammingError)


def outage(error: BaseException | None) -> Unavailable | None:
    """What to tell a caller when ``error`` means a database that is locked, full, damaged or gone; else None."""
    if isinstance(error, DBAPIError) and not isinstance(error, _MISTAKES):
        return Unavailable(f"the database does not answer: {error.orig}")
    if isinstance(error, PoolTimeout):
        return Unavailable("the database does not answer: every connection is taken")
    return None
