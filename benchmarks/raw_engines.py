"""What the engine reaches with the rows of a filled store: the same rows, in commits of the same size, as durable.

Its settings are those of the store.

Nothing is decoded, checked, numbered or folded, and no row is built while the clock runs: an honest ceiling for
anything that stores these rows one by one. Roll-ups are left out of it; keeping them is our affair.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg
from scalescope_server.store.sqlite import LOG_PAGES, WRITER_CACHE_KIB
from sqlalchemy import make_url

# A table, what its rows are ordered by, and the steps a commit takes of it.
UPDATES = ("step", "scalar")
SAMPLES = ("sample", "scalar")


def sqlite_seconds(folder: str, filled: str, tables: Sequence[str], commits: Sequence[tuple[int, int]]) -> float:
    """Of SQLite, for what the store in ``filled`` has of ``tables``, the steps [start, stop) of each commit."""
    new = Path(folder) / "raw.db"
    new.unlink(missing_ok=True)
    with sqlite3.connect(filled) as source:
        statements = [row[0] for row in source.execute(_SQLITE_SCHEMA.format(_listed(tables))) if row[0]]
        chunks = [[(table, _rows(source, table, commit)) for table in tables] for commit in commits]
    target = sqlite3.connect(new, isolation_level=None)
    for statement in (*_SETTINGS, *statements):
        target.execute(statement)
    began = time.perf_counter()
    for chunk in chunks:
        target.execute("BEGIN IMMEDIATE")
        for table, rows in chunk:
            if rows:
                target.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        target.execute("COMMIT")
    seconds = time.perf_counter() - began
    target.close()
    return seconds


def postgres_seconds(url: str, tables: Sequence[str], commits: Sequence[tuple[int, int]]) -> float:
    """The same of Postgres by COPY, in tables of the same columns and keys in the same database."""
    with psycopg.connect(make_url(url).set(drivername="postgresql").render_as_string(False)) as connection:
        for table in tables:
            connection.execute(f"DROP TABLE IF EXISTS raw_{table}")
            connection.execute(f"CREATE TABLE raw_{table} (LIKE {table} INCLUDING ALL)")
        chunks = [[(table, _copied(connection, table, commit)) for table in tables] for commit in commits]
        connection.commit()
        began = time.perf_counter()
        for chunk in chunks:
            for table, data in chunk:
                with connection.cursor().copy(f"COPY raw_{table} FROM STDIN (FORMAT BINARY)") as copy:
                    copy.write(data)
            connection.commit()
        return time.perf_counter() - began


def _listed(tables: Sequence[str]) -> str:
    return ", ".join(f"'{table}'" for table in tables)


def _rows(source: sqlite3.Connection, table: str, commit: tuple[int, int]) -> list[tuple[object, ...]]:
    return source.execute(_CHOSEN.format(table, *commit)).fetchall()


def _copied(connection: psycopg.Connection[tuple[object, ...]], table: str, commit: tuple[int, int]) -> bytes:
    with connection.cursor().copy(f"COPY ({_CHOSEN.format(table, *commit)}) TO STDOUT (FORMAT BINARY)") as copy:
        return b"".join(copy)


_SETTINGS = (
    *("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL"),
    *(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}", f"PRAGMA wal_autocheckpoint = {LOG_PAGES}"),
)
_SQLITE_SCHEMA = "SELECT sql FROM sqlite_master WHERE tbl_name IN ({}) ORDER BY type DESC"
_CHOSEN = "SELECT * FROM {0} WHERE step >= {1} AND step < {2}"
