"""Where a SQLite database is: one file for every way to write its address."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from scalescope_server.store.errors import SchemaError


def database_file(url: str) -> Path:
    """The file at ``url``, ``sqlite:///PATH`` or a bare path: absolute, "~" and links followed.

    Raises:
        SchemaError: if it is no SQLite file.
    """
    try:
        found = make_url(url) if "://" in url else make_url("sqlite://").set(database=url)
    except ArgumentError as error:
        raise _unknown(url) from error
    if found.get_backend_name() != "sqlite" or found.database in (None, "", ":memory:") or found.query:
        raise _unknown(url)
    return Path(found.database or "").expanduser().resolve()


def _unknown(url: str) -> SchemaError:
    return SchemaError(f"expected sqlite:///PATH or a path as the database, got {url!r}")
