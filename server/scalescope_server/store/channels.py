"""The channels that users have set up, with their secrets: what is read here is for who sends, and nobody else."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, Row, Select, delete, func, insert, select, update

from scalescope_server.store import tables
from scalescope_server.store.trimming import read_forgotten

# More than anybody reads of.
MOST_CHANNELS = 500


class ChannelRow(Struct, frozen=True, kw_only=True):
    """``config``: where it leads, secrets included, as they were given."""

    name: str
    kind: str
    config: dict[str, Any]
    enabled: bool
    created_at: float

    def __repr__(self) -> str:
        return f"ChannelRow({self.name!r}, {self.kind!r})"


class Traffic(Struct, frozen=True):
    """How many notifications wait for a channel, have arrived and were given up; why the last one failed, if it did.

    ``tried_at``, ``arrived``: when the last was tried, and whether it had arrived; None where none was.
    """

    waiting: int = 0
    delivered: int = 0
    failed: int = 0
    error: str | None = None
    tried_at: float | None = None
    arrived: bool | None = None


def list_channels(connection: Connection) -> list[ChannelRow]:
    """By name."""
    columns = [tables.channel.c[name] for name in ChannelRow.__struct_fields__]
    found = connection.execute(select(*columns).order_by(tables.channel.c.name)).all()
    return [ChannelRow(**row._asdict()) for row in found]


def add_channel(connection: Connection, channel: ChannelRow) -> bool:
    """Whether it was added: not where one has its name already, or there are too many."""
    names = connection.execute(select(tables.channel.c.name)).scalars().all()
    if channel.name in names or len(names) >= MOST_CHANNELS:
        return False
    connection.execute(insert(tables.channel).values(msgspec.structs.asdict(channel)))
    return True


def switch_channel(connection: Connection, name: str, *, enabled: bool) -> bool:
    """Whether there is one to be switched on or off."""
    named = update(tables.channel).where(tables.channel.c.name == name)
    return connection.execute(named.values(enabled=enabled)).rowcount == 1


def delete_channel(connection: Connection, name: str) -> bool:
    """Whether there was one. What waits to be told by it will fail, and say so."""
    return connection.execute(delete(tables.channel).where(tables.channel.c.name == name)).rowcount == 1


def traffic(connection: Connection) -> dict[str, Traffic]:
    """Of each channel that has had any."""
    told = tables.delivery.c
    counts = [func.count().filter(told.state == state) for state in ("waiting", "delivered", "failed")]
    failed = func.coalesce(func.max(told.key).filter(told.error.is_not(None), told.tried_at.is_not(None)), 0)
    tried = func.coalesce(func.max(told.key).filter(told.tried_at.is_not(None)), 0)
    found = connection.execute(select(told.channel, *counts, failed, tried).group_by(told.channel)).all()
    lasts: Select[Any] = select(told.key, told.error, told.tried_at, told.state).where(
        told.key.in_({key for row in found for key in row[-2:]})
    )
    last = {row.key: row for row in connection.execute(lasts)}
    past = read_forgotten(connection)
    return {
        channel: _traffic(
            (waiting, *map(sum, zip(kept, past.get(channel, (0, 0)), strict=True))), last.get(why), last.get(tried)
        )
        for channel, waiting, *kept, why, tried in found
    }


def _traffic(counted: tuple[int, ...], failed: Row[Any] | None, tried: Row[Any] | None) -> Traffic:
    waiting, delivered, given_up = counted
    return Traffic(
        waiting,
        delivered,
        given_up,
        failed and failed.error,
        tried and tried.tried_at,
        None if tried is None else tried.state == "delivered",
    )
