"""What the store asks of a sort of database; what only one of them understands is in ``sqlite`` and ``postgres``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sqlalchemy import Connection, Engine

from scalescope_server.store.telegrams import Telegraph

# Is told of long work: what is done, how much of it, and of how much.
Told = Callable[[str, int, int], None]


def untold(_: str, __: int, ___: int) -> None:
    """Tells nobody."""


class Backend(Protocol):
    """One database, opened or not. Its text is its address without a password."""

    @property
    def shared(self) -> bool:
        """Whether several servers may use it at once."""

    def writing(self) -> Engine:
        """An engine whose transactions write. Nothing is opened yet."""

    def reading(self) -> Engine:
        """An engine whose transactions only read, and each see one state."""

    def admit_writing(self, connection: Connection) -> None:
        """Let a transaction write, unless the database has been brought to another revision meanwhile.

        Raises:
            Unavailable: if it has, or is being.
        """

    def telegraph(self) -> Telegraph:
        """The way to other servers that use it."""

    def prepare(self, writing: Engine) -> None:
        """See to it that the database is there and at this program's revision, or refuse.

        Raises:
            SchemaError: if it is no database of ours, of a newer version, or has to be migrated first.
            Unavailable: if it cannot be opened or written.
        """

    def migrate(self, writing: Engine, told: Told = untold) -> str:
        """Make the tables, or bring them to this program's revision; what was done, in a sentence.

        Raises:
            SchemaError: if it is no database of ours, or of a newer version.
            Unavailable: if it cannot be opened or written.
        """
