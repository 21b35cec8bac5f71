"""Texts that Postgres can hold: all but the sign NUL, in whose place stands the one for what could not be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

NUL, UNREADABLE = "\0", "\N{REPLACEMENT CHARACTER}"


def storable(text: str) -> str:
    """``text`` as it is stored. Names that are looked up by what a trainer called them go through here first."""
    return text.replace(NUL, UNREADABLE)


def bind_storable(connection: psycopg.Connection[Any]) -> None:
    """Let ``connection`` bind every text so, whoever it is from: a name in a query, a note, the end of a run."""
    # Only where there is a connection: psycopg is an extra.
    from psycopg.types.string import StrDumper

    class StorableDumper(StrDumper):
        def dump(self, obj: str) -> bytes | bytearray | memoryview | None:
            return super().dump(storable(obj) if NUL in obj else obj)

    connection.adapters.register_dumper(str, StorableDumper)
