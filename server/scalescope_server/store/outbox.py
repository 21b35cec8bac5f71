"""The outbox: notifications that wait to be told, taken by one server at a time, and what became of each.

What is taken is held for :data:`LEASE_S` under the name of who took it. When that server dies, another takes it again
after that time, under the same message key. What one alert has to tell one channel goes out in the order in which it
happened: as long as something of it is tried again, what came later waits. All times are of the database's clock, since
those of servers may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, Double, Row, Select, and_, bindparam, case, func, or_, select, update

from scalescope_server.store import tables
from scalescope_server.store.leases import clock_of

# Longer than any attempt takes.
LEASE_S = 20.0
# A run tells a channel nothing new so soon after an attempt to tell it something.
WINDOW_S = 10.0
# No row is due later than that from now: one that is was stored before the database's clock was set back.
FARTHEST_S = 1000.0
# What one transaction looks at: the oldest rows of each channel, so that none keeps another from being looked at.
MOST_OF_ONE = 200
MOST_DUE = 5000
# A channel that nothing is sent to: what it is told is there for open pages at once.
BROWSER = "browser"
WAITING, DELIVERED, FAILED, SUPPRESSED = "waiting", "delivered", "failed", "suppressed"
# "outbox" in ASCII: of servers on one Postgres the one that holds the lock of this number takes what is due.
TAKING = 0x6F7574626F78


class Waiting(Struct, frozen=True):
    """A row that is due. ``id``: its idempotency key. ``message``: of what it was part when it was tried before."""

    key: int
    run: int
    channel: str
    id: str
    message: str | None


class Parcel(Struct, frozen=True):
    """Rows that go out as one message, under its key."""

    message: str
    channel: str
    rows: tuple[int, ...]


class Plan(Struct, frozen=True):
    """``parcels`` go now; ``later`` says until when other rows wait."""

    parcels: tuple[Parcel, ...]
    later: Mapping[int, float]


# From what is due, until when each run and channel is not told anything new, and the time that it is.
Planner = Callable[[Sequence[Waiting], Mapping[tuple[int, str], float], float], Plan]


class Taken(Struct, frozen=True):
    """A message to be sent now. ``attempt``: from 1. ``notices``: as they were entered, and ``ids`` of their rows.

    ``reached``: those of the channel's targets that an attempt before has reached.
    """

    message: str
    channel: str
    attempt: int
    notices: tuple[dict[str, Any], ...]
    ids: tuple[str, ...]
    reached: frozenset[str] = frozenset()


class Ending(Struct, frozen=True):
    """What became of an attempt. ``error``: None where it arrived; ``retry_in_s``: None where it is not tried again.

    ``reached``: those of the channel's targets that have it by now.
    """

    message: str
    took_s: float
    error: str | None = None
    retry_in_s: float | None = None
    reached: frozenset[str] = frozenset()


def take(connection: Connection, holder: str, plan: Planner) -> list[Taken]:
    """Let ``holder`` have what is due, for as long as a lease lasts. Nothing while another server takes its own."""
    if not _has_turn(connection):
        return []
    return take_at(connection, holder, plan, clock_of(connection))


def take_at(connection: Connection, holder: str, plan: Planner, now: float) -> list[Taken]:
    due = [_waiting(row) for row in connection.execute(_DUE, _times(now))]
    if not due:
        return []
    planned = plan(_whole(connection, due), _rests(connection, due, now), now)
    for until, keys in _by_time(planned.later).items():
        connection.execute(update(_TABLE).where(_TABLE.c.key.in_(keys)).values(due_at=until))
    held = [_hold(connection, parcel, holder, now) for parcel in planned.parcels]
    return [taken for taken in held if taken is not None]


def settle(connection: Connection, holder: str, endings: Iterable[Ending]) -> None:
    """Note what became of attempts, unless another server has taken them over since."""
    settle_at(connection, holder, endings, clock_of(connection))


def settle_at(connection: Connection, holder: str, endings: Iterable[Ending], now: float) -> None:
    row = _TABLE.c
    for ending in endings:
        mine = update(_TABLE).where(row.message == ending.message, row.holder == holder, row.state == WAITING)
        told: dict[str, object] = {"holder": None, "leased_until": None, "took_s": ending.took_s}
        told |= {"error": ending.error, "reached": sorted(ending.reached) or None}
        connection.execute(mine.values(told | _ended(ending, now)))


def let_go(connection: Connection, holder: str) -> None:
    """Let others, or the next server of the same name, have at once what ``holder`` was about to send."""
    held = update(_TABLE).where(_TABLE.c.state == WAITING, _TABLE.c.holder == holder)
    connection.execute(held.values(holder=None, leased_until=None))


def due_in(connection: Connection) -> float | None:
    """Seconds until something can be taken, 0 or less where it can be now; None where nothing waits."""
    now = clock_of(connection)
    at = connection.execute(_NEXT, _times(now)).scalar_one()
    return None if at is None else at - now


def _times(now: float) -> dict[str, float]:
    return {"now": now, "beyond": now + 2 * LEASE_S, "farthest": now + FARTHEST_S}


def _ended(ending: Ending, now: float) -> dict[str, object]:
    if ending.retry_in_s is not None:
        return {"due_at": now + ending.retry_in_s}
    if ending.error is not None:
        return {"state": FAILED}
    # Until when its run tells the channel nothing new.
    return {"state": DELIVERED, "due_at": now + WINDOW_S}


def _has_turn(connection: Connection) -> bool:
    """Of servers that share a database one takes at a time, so that what belongs together stays together."""
    if connection.dialect.name != "postgresql":
        return True
    return bool(connection.execute(select(func.pg_try_advisory_xact_lock(TAKING))).scalar_one())


def _whole(connection: Connection, due: Sequence[Waiting]) -> list[Waiting]:
    """With all rows of the messages that some of them went into."""
    messages = {row.message for row in due if row.message is not None}
    if not messages:
        return list(due)
    rest = connection.execute(_OF_MESSAGES, {"messages": sorted(messages)})
    return list({row.key: row for row in [*due, *map(_waiting, rest)]}.values())


def _rests(connection: Connection, due: Sequence[Waiting], now: float) -> dict[tuple[int, str], float]:
    """Until when each run and channel of ``due`` is not told anything new."""
    found: dict[tuple[int, str], float] = {}
    chosen = {"now": now, "channels": sorted({row.channel for row in due})}
    for run, channel, until in connection.execute(_RESTING, chosen):
        found[run, channel] = max(until, found.get((run, channel), until))
    return found


def _hold(connection: Connection, parcel: Parcel, holder: str, now: float) -> Taken | None:
    """Those of its rows that wait yet: the judge, or somebody, may have taken one back since they were read."""
    row = _TABLE.c
    held = {"message": parcel.message, "holder": holder, "leased_until": now + LEASE_S, "tried_at": now}
    waiting = update(_TABLE).where(row.key.in_(parcel.rows), row.state == WAITING)
    holding = waiting.values(held | {"attempts": row.attempts + 1})
    returned = connection.execute(holding.returning(row.key, row.id, row.notice, row.attempts, row.reached)).all()
    found = sorted(returned, key=lambda one: one.key)
    if not found:
        return None
    return Taken(
        parcel.message,
        parcel.channel,
        found[0].attempts,
        tuple(one.notice for one in found),
        tuple(one.id for one in found),
        frozenset(found[0].reached or ()),
    )


def _by_time(later: Mapping[int, float]) -> dict[float, list[int]]:
    found: dict[float, list[int]] = {}
    for key, until in later.items():
        found.setdefault(until, []).append(key)
    return found


def _waiting(row: Row[Any]) -> Waiting:
    return Waiting(row.key, row.run, row.channel, row.id, row.message)


_TABLE = tables.delivery
_OLDER = tables.delivery.alias("older")
_NOW, _BEYOND, _FARTHEST = (bindparam(name, type_=Double) for name in ("now", "beyond", "farthest"))


def _is_due(at: ColumnElement[float]) -> ColumnElement[bool]:
    return or_(at <= _NOW, at > _FARTHEST)


_ROWS: Select[Any] = select(*(_TABLE.c[name] for name in Waiting.__struct_fields__)).where(_TABLE.c.state == WAITING)
# Held by nobody, or by a server that is gone; a lease that would end in the far future is of a clock that was set back.
_FREE = or_(_TABLE.c.holder.is_(None), _TABLE.c.leased_until <= _NOW, _TABLE.c.leased_until > _BEYOND)
# What the same alert has to tell the same channel before it, and cannot go out with it.
_AHEAD = (
    select(_OLDER.c.key)
    .where(_OLDER.c.alert == _TABLE.c.alert, _OLDER.c.channel == _TABLE.c.channel, _OLDER.c.state == WAITING)
    .where(_OLDER.c.key < _TABLE.c.key, or_(_OLDER.c.message.is_not(None), ~_is_due(_OLDER.c.due_at)))
    .exists()
)
_IN_TURN = or_(_TABLE.c.message.is_not(None), ~_AHEAD)
_PLACE = func.row_number().over(partition_by=_TABLE.c.channel, order_by=_TABLE.c.key).label("place")
_OLDEST = _ROWS.add_columns(_PLACE).where(_is_due(_TABLE.c.due_at), _FREE, _IN_TURN).subquery()
_DUE = select(_OLDEST).where(_OLDEST.c.place <= MOST_OF_ONE).order_by(_OLDEST.c.place, _OLDEST.c.key).limit(MOST_DUE)
_OF_MESSAGES = _ROWS.where(_TABLE.c.message.in_(bindparam("messages", expanding=True)))
_LEASE_ENDS = case((_TABLE.c.leased_until > _BEYOND, _NOW), else_=_TABLE.c.leased_until)
_DUE_AT = case((_TABLE.c.due_at > _FARTHEST, _NOW), else_=_TABLE.c.due_at)
_NEXT = select(func.min(case((_TABLE.c.holder.is_(None), _DUE_AT), else_=_LEASE_ENDS))).where(
    _TABLE.c.state == WAITING, _IN_TURN
)
# A run rests after something new was tried. An attempt made again tells nothing new.
_RESTING: Select[Any] = select(
    _TABLE.c.run,
    _TABLE.c.channel,
    case((_TABLE.c.state == DELIVERED, _TABLE.c.due_at), else_=_TABLE.c.tried_at + WINDOW_S),
).where(
    _TABLE.c.channel.in_(bindparam("channels", expanding=True)),
    or_(
        and_(_TABLE.c.state == DELIVERED, _TABLE.c.due_at > _NOW),
        and_(_TABLE.c.state == WAITING, _TABLE.c.message.is_not(None), _TABLE.c.attempts == 1),
    ),
)
