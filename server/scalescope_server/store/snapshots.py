"""Short read transactions, each one snapshot, and what is looked up in every one of them: a run, its steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, Row, bindparam, select
from sqlalchemy.exc import SQLAlchemyError

from scalescope_server.store import tables
from scalescope_server.store.errors import NotFound
from scalescope_server.store.outages import outage


class Snapshots:
    """Hands out read transactions of one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that sees one state of the database. :class:`Unavailable`."""
        try:
            with self._engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            if told := outage(error):
                raise told from error
            raise


def found_run(connection: Connection, run: str) -> Row[Any]:
    """The row of ``run``. :class:`NotFound`."""
    found = connection.execute(_RUN, {"run_id": run}).one_or_none()
    if found is None:
        raise NotFound(run)
    return found


def steps_of(run: Row[Any], start: int | None, stop: int | None) -> tuple[int, int]:
    """The steps asked for, within those the run has."""
    first = max(start or 0, 0)
    end = run.length if stop is None else min(stop, run.length)
    return first, max(end, first)


_RUN = select(tables.run).where(tables.run.c.id == bindparam("run_id"))
