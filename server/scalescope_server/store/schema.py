"""The schema's revisions: applied to a SQLite file when it is opened and to Postgres by ``scalescope migrate``."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from importlib.resources import as_file, files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from scalescope_server.store.errors import SchemaError, Unavailable

_MIGRATIONS = "scalescope_server.migrations"
_REVISION = text("SELECT version_num FROM alembic_version")


def upgrade(
    connection: Connection, target: str = "head", on_revision: Callable[[int, int], None] = lambda _, __: None
) -> None:
    """Bring the database to the newest revision, or to ``target``, in the connection's transaction.

    ``on_revision``: told how many are done of how many.

    Raises:
        SchemaError: if it was written by a newer program, or by another one.
    """
    found = revision_of(connection)
    _check_known(connection, found)
    if found == _newest():
        return
    with as_file(files(_MIGRATIONS)) as folder:
        config = Config()
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        config.attributes["connection"] = connection
        ahead = sum(1 for _ in ScriptDirectory.from_config(config).iterate_revisions(target, found or "base"))
        done = itertools.count(1)
        config.attributes["on_version_apply"] = lambda **_: on_revision(next(done), ahead)
        on_revision(0, ahead)
        command.upgrade(config, target)


def check(connection: Connection, command: str) -> None:
    """See to it that the database is at this program's revision, which ``command`` would bring it to.

    Raises:
        SchemaError: if it is not; the message says what to do.
    """
    found = revision_of(connection)
    _check_known(connection, found)
    if found != _newest():
        state = "an empty one" if found is None else f"one at {found}"
        raise SchemaError(f"expected a database at revision {_newest()}, got {state}: run {command}")


def check_unchanged(connection: Connection) -> None:
    """See to it that the database is still at this program's revision, as it was when it was opened. One short query.

    Raises:
        Unavailable: if it is not.
    """
    found = connection.execute(_REVISION).scalar_one_or_none()
    if found != _newest():
        raise Unavailable(
            f"the database was brought to revision {found} and this server is of {_newest()}, so it writes nothing any "
            "more: start the version that belongs to it"
        )


def outdated(connection: Connection) -> str | None:
    """The revision that :func:`upgrade` would take the database away from; None where it holds nothing of an older one.

    Raises:
        SchemaError: if it was written by a newer program, or by another one.
    """
    found = revision_of(connection)
    _check_known(connection, found)
    return None if found == _newest() else found


def is_current(connection: Connection) -> bool:
    """Whether the database is at the revision of this program."""
    return revision_of(connection) == _newest()


def finds_current(reading: Engine) -> bool:
    """Whether a database that is not open yet is at this program's revision; not where it cannot be read."""
    try:
        with reading.connect() as connection:
            return is_current(connection)
    except SQLAlchemyError:
        return False
    finally:
        reading.dispose()


def revision_of(connection: Connection) -> str | None:
    """The revision the database is at; None before the first."""
    return MigrationContext.configure(connection).get_current_revision()


@cache
def _revisions() -> tuple[str, ...]:
    """All that this program knows, the newest first. Read once: each is a file."""
    with as_file(files(_MIGRATIONS)) as folder:
        return tuple(script.revision for script in ScriptDirectory(str(folder)).walk_revisions())


def _newest() -> str:
    return _revisions()[0]


def _check_known(connection: Connection, found: str | None) -> None:
    if found is not None and found not in _revisions():
        raise SchemaError(
            f"expected a database of at most revision {_newest()}, got one at {found}: "
            "it was written by a newer scalescope; install that version or name another database"
        )
    others = inspect(connection).get_table_names()
    if found is None and others:
        raise SchemaError(
            f"expected an empty database or one of scalescope, got one with the table {others[0]}: name another one"
        )
