"""A Postgres database, by psycopg: its connections, transactions and time limits. Several servers may share one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.engine.interfaces import DBAPIConnection, IsolationLevel
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.pool import ConnectionPoolEntry

from scalescope_server.store import schema
from scalescope_server.store.backend import Told, untold
from scalescope_server.store.binary_arrays import understand_arrays
from scalescope_server.store.errors import SchemaError, Unavailable
from scalescope_server.store.json_text import dumps
from scalescope_server.store.outages import reason, sqlstate
from scalescope_server.store.telegrams import Telegraph
from scalescope_server.store.texts import bind_storable

if TYPE_CHECKING:
    import psycopg

# Short read transactions at once, as on SQLite; few of them are kept open, since servers share the connections.
READERS = 16
KEPT_OPEN = 4
POOL_WAIT_S = 5.0
# Nothing waits for ever: not for a lock, nor for an answer.
LIMITS = {"lock_timeout": "5s", "statement_timeout": "30s"}
# Plans are short; compiling one costs more than running it.
SESSION = {**LIMITS, "jit": "off"}
# A server that stopped in the middle of a transaction lets go of it: the runs that it holds others want to write.
IDLE_WRITING = "15s"
IDLE_READING = "60s"
# A peer that is gone without a word is noticed after 5 + 3 * 2 s, and after 10 s where something was on its way.
CONNECTING: Mapping[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "scalescope",
    # After a failover the old primary may still answer, as one that only reads: it would show and judge the past.
    "target_session_attrs": "read-write",
}
# "scalescope" in ASCII, cut to 64 bits: whoever migrates this database holds the lock of this number.
MIGRATING = 0x7363616C6573636F
# What an ALTER TABLE waits for the transactions of servers that run.
MIGRATION_LOCK = "30s"
READ_ONLY = "25006"


@dataclass(frozen=True, slots=True)
class Postgres:
    """The database at ``url``. ``scalescope migrate`` makes its tables and changes them; opening it does not."""

    url: URL
    shared = True

    def __str__(self) -> str:
        known = {name: value for name, value in self.url.query.items() if name in ("host", "port")}
        shown = URL.create(
            "postgresql", self.url.username, None, self.url.host, self.url.port, self.url.database, known
        )
        return shown.render_as_string()

    def writing(self) -> Engine:
        return self._engine("READ COMMITTED", IDLE_WRITING, kept_open=2, most=4)

    def reading(self) -> Engine:
        engine = self._engine("REPEATABLE READ", IDLE_READING, kept_open=KEPT_OPEN, most=READERS)
        event.listen(engine, "connect", _only_read)
        return engine

    def admit_writing(self, connection: Connection) -> None:
        # In statements of their own: only what is read under the lock is what the last migration left.
        if not connection.execute(_NOT_MIGRATING, {"number": MIGRATING}).scalar_one():
            raise Unavailable("the database is being migrated")
        schema.check_unchanged(connection)

    def telegraph(self) -> Telegraph:
        # Here, so that a server on SQLite does without psycopg.
        from scalescope_server.store.telegraph import PostgresTelegraph

        return PostgresTelegraph(self._dial)

    def prepare(self, writing: Engine) -> None:
        with self._opened(writing) as connection:
            _check_encoding(connection)
            schema.check(connection, f"scalescope migrate --database {self}")

    def migrate(self, writing: Engine, told: Told = untold) -> str:
        """As :class:`Backend` says; of several that try at once, one does and the others wait for it."""
        with self._opened(writing) as connection:
            _check_encoding(connection)
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text("SET LOCAL lock_timeout = 0"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": MIGRATING})
            connection.execute(text(f"SET LOCAL lock_timeout = '{MIGRATION_LOCK}'"))
            schema.upgrade(connection, on_revision=lambda done, of: told("revisions", done, of))
        return f"{self} is up to date."

    def _dial(self) -> psycopg.Connection[Any]:
        """A connection of one's own, beside those of the engines."""
        import psycopg

        # As the engines do: of several hosts in an address libpq itself would take the last.
        _, parts = self.url.get_dialect()().create_connect_args(self.url)
        return psycopg.connect(autocommit=True, **self._connecting(), **parts)

    def _connecting(self) -> dict[str, Any]:
        return {name: value for name, value in CONNECTING.items() if name not in self.url.query}

    @contextmanager
    def _opened(self, writing: Engine) -> Iterator[Connection]:
        try:
            with writing.begin() as connection:
                yield connection
        except ProgrammingError as error:
            raise SchemaError(f"the database {self} cannot be used: {reason(error)}") from error
        except DBAPIError as error:
            raise Unavailable(f"the database {self} could not be opened: {reason(error)}") from error

    def _engine(self, isolation: IsolationLevel, idle: str, *, kept_open: int, most: int) -> Engine:
        try:
            engine = create_engine(
                self.url,
                connect_args=self._connecting(),
                pool_timeout=POOL_WAIT_S,
                pool_pre_ping=True,
                pool_use_lifo=True,
                json_serializer=dumps,
                use_native_hstore=False,
                isolation_level=isolation,
                pool_size=kept_open,
                max_overflow=most - kept_open,
            )
        except ModuleNotFoundError as error:
            raise SchemaError(
                f"expected psycopg for the database {self}: run pip install 'scalescope[postgres]'"
            ) from error
        event.listen(engine, "connect", partial(_configure, SESSION | {"idle_in_transaction_session_timeout": idle}))
        event.listen(engine, "handle_error", _note_demotion)
        return engine


def _configure(session: Mapping[str, str], connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    driver = _driver(connection)
    understand_arrays(driver)
    bind_storable(driver)
    settings = [f"set_config('{name}', '{value}', false)" for name, value in session.items()]
    # What is acknowledged has to be on the disk, whatever the database's own default is.
    durable = (
        "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END"
    )
    driver.execute(f"SELECT {', '.join(settings)}, set_config('synchronous_commit', {durable}, false)")
    driver.commit()


def _only_read(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    _driver(connection).read_only = True


def _note_demotion(context: ExceptionContext) -> None:
    """A primary that became a standby answers on; all connections to it are of no use any more."""
    if context.sqlalchemy_exception is not None and sqlstate(context.sqlalchemy_exception) == READ_ONLY:
        context.is_disconnect = True


def _check_encoding(connection: Connection) -> None:
    encoding = connection.execute(text("SHOW server_encoding")).scalar_one()
    if encoding != "UTF8":
        raise SchemaError(f"expected a database in the encoding UTF8, got {encoding}: make one with ENCODING 'UTF8'")


# Beside others that write, and not beside one that migrates.
_NOT_MIGRATING = text("SELECT pg_try_advisory_xact_lock_shared(:number)")


def _driver(connection: DBAPIConnection) -> psycopg.Connection[Any]:
    found: Any = connection
    return found  # type: ignore[no-any-return]
