"""Where a database is: one file for every way to write the address of a SQLite one, or a Postgres URL."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from scalescope_server.store.errors import SchemaError

# The driver may be named, as SQLAlchemy does; libpq and Heroku write "postgres".
_POSTGRES = frozenset({"postgresql", "postgres", "postgresql+psycopg", "postgres+psycopg"})


def database_file(url: str) -> Path:
    """The file at ``url``, ``sqlite:///PATH`` or a bare path: absolute, "~" and links followed.

    Raises:
        SchemaError: if it is no SQLite file, or a directory.
    """
    found = _parsed(url)
    if found.get_backend_name() != "sqlite" or found.database in (None, "", ":memory:") or found.query:
        raise _unknown(found)
    file = Path(found.database or "").expanduser().resolve()
    if file.is_dir():
        raise SchemaError(f"expected a file as the database, got the directory {file}")
    return file


def sqlite_file(url: str) -> Path | None:
    """The file that the database at ``url`` is in; None for Postgres. :class:`SchemaError` for anything else."""
    return database_file(url) if postgres_url(url) is None else None


def postgres_url(url: str) -> URL | None:
    """The Postgres database at ``url``, as SQLAlchemy opens it; None if it is the address of something else.

    Raises:
        SchemaError: if it names no database, or a driver that is not psycopg.
    """
    found = _parsed(url)
    if not found.drivername.startswith("postgres"):
        return None
    if found.drivername not in _POSTGRES or not found.database:
        raise _unknown(found)
    return found.set(drivername="postgresql+psycopg")


def _parsed(url: str) -> URL:
    try:
        return make_url(url) if "://" in url else make_url("sqlite://").set(database=url)
    except (ArgumentError, ValueError) as error:
        # Not told in full: it may hold a password.
        raise SchemaError(f"{_EXPECTED}, got an address that starts with {url[:12]!r}") from error


def _unknown(url: URL) -> SchemaError:
    # Behind the question mark there may be a password, too, but for SQLite.
    told = url if url.get_backend_name() == "sqlite" else url.set(query={})
    shown = told.render_as_string() if url.database else f"{url.drivername}://"
    return SchemaError(f"{_EXPECTED}, got {shown!r}")


_EXPECTED = "expected sqlite:///PATH, a path, or postgresql://USER:PASSWORD@HOST/NAME as the database"
