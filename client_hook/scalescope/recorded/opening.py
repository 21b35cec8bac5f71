"""``scalescope.open_run``: a stored run for a notebook."""

from __future__ import annotations

import os

from scalescope.errors import SettingError
from scalescope.recorded.run import RecordedRun
from scalescope.recorded.sources import ServerSource, Source, database_source
from scalescope.settings import read_settings


def open_run(run: str, *, url: str | None = None, token: str | None = None, database: str | None = None) -> RecordedRun:
    """A stored run, whose series, events, histograms and layers are read as numpy arrays.

    Args:
        run: its id, as the pages and ``scalescope runs`` show it.
        url: the server, by default SCALESCOPE_URL or this machine's own; ``token`` likewise.
        database: a path or URL, read without a server. Needs ``scalescope[server]``.

    Raises:
        SettingError: for an address that is none, or both of a server and a database.
        ReadError: if the database cannot be opened; what cannot be read later is told by the method that asks.
    """
    if database is not None and url is not None:
        raise SettingError("database", expected="either a database or a url", got=database)
    return RecordedRun(run, _source(url, token, database))


def _source(url: str | None, token: str | None, database: str | None) -> Source:
    if database is not None:
        return database_source(database)
    settings = read_settings(os.environ, url=url, token=token)
    return ServerSource(settings.url, settings.token)
