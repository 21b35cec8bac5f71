"""An alert that flaps: what of it is told a channel at once, what later, and what not at all.

Of one alert a channel is told :data:`FIRINGS` firings within :data:`WITHIN_S` as they come. The next waits until that
is so again, and where the alert fires once more in the meantime the newest takes the place of the one that waits, and
says how many it stands for. So a channel hears of an alert that flaps without an end eighteen times in an hour at most,
and never waits longer than ten minutes to hear how it stands.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, func, select, update

from scalescope_server.store import tables
from scalescope_server.store.outbox import BROWSER, SUPPRESSED, WAITING, WINDOW_S

FIRINGS = 3
WITHIN_S = 600.0
SUPERSEDED = "it fired again before it was told"
TOO_OFTEN = "it fires too often for pages to show it each time"

Columns = dict[str, Any]


@dataclass(slots=True)
class _Held:
    """A firing that waits, and how many before it it stands for. ``rows``: those of it that are not stored yet."""

    firing: int
    due_at: float
    unsaid: int
    rows: list[Columns] = field(default_factory=list)


@dataclass(slots=True)
class _Past:
    """What a channel was told of an alert. ``firings``: the newest, with the time of each, the newest last."""

    firings: list[tuple[int, float]] = field(default_factory=list)
    held: _Held | None = None

    def again_at(self, now: float) -> float:
        """From when on it may be told of another firing; ``now`` where that is so already."""
        # Times to come are of a clock that was set back.
        times = [at for _, at in self.firings if now - WITHIN_S < at <= now]
        return times[-FIRINGS] + WITHIN_S if len(times) >= FIRINGS else now


def damp(connection: Connection, alert: int, entered: Collection[Columns], now: float) -> None:
    """Decide of rows about to be entered into the outbox, in the order in which they happened, when each is due."""
    past = _read(connection, alert, {row["channel"] for row in entered}, now)
    superseded: list[tuple[str, int]] = []
    for row in entered:
        told = past.setdefault(row["channel"], _Past())
        if row["happened"] != "fired":
            _enter_end(row, told)
        elif row["channel"] == BROWSER:
            _show(row, told, now)
        else:
            superseded += _enter_beginning(row, told, now)
    for channel, firing in superseded:
        _suppress(connection, alert, channel, firing)


def _enter_beginning(row: Columns, told: _Past, now: float) -> list[tuple[str, int]]:
    """The firing, if any, that this one takes the place of, and of which rows may be stored."""
    before = told.held
    due_at = told.again_at(now) if before is None else before.due_at
    if due_at <= now and before is None:
        told.firings.append((row["firing"], now))
        return []
    told.held = _Held(row["firing"], due_at, 0 if before is None else before.unsaid + 1, [row])
    row["due_at"] = due_at
    row["notice"] = {**row["notice"], "unsaid": told.held.unsaid}
    if before is None:
        return []
    for unsaid in before.rows:
        unsaid |= {"state": SUPPRESSED, "error": SUPERSEDED}
    return [(row["channel"], before.firing)]


def _enter_end(row: Columns, told: _Past) -> None:
    if told.held is not None and told.held.firing == row["firing"]:
        told.held.rows.append(row)
    elif row["channel"] == BROWSER and told.firings and row["firing"] not in dict(told.firings):
        row |= {"state": SUPPRESSED, "error": TOO_OFTEN}


def _show(row: Columns, told: _Past, now: float) -> None:
    """Pages are told at once or not at all: what is past is no news."""
    if told.again_at(now) > now:
        row |= {"state": SUPPRESSED, "error": TOO_OFTEN}
    else:
        told.firings.append((row["firing"], now))


def _read(connection: Connection, alert: int, channels: Collection[str], now: float) -> dict[str, _Past]:
    row = tables.delivery.c
    place = func.row_number().over(partition_by=row.channel, order_by=row.key.desc()).label("place")
    names = (row.key, row.channel, row.firing, row.notice, row.due_at, row.tried_at, _is_held(now).label("held"))
    told = select(*names, place).where(row.alert == alert, row.channel.in_(channels), row.happened == "fired")
    newest = told.where(row.state != SUPPRESSED).subquery()
    found: dict[str, _Past] = {}
    for stored in connection.execute(select(newest).where(newest.c.place <= FIRINGS).order_by(newest.c.key)):
        _recall(found.setdefault(stored.channel, _Past()), stored, now)
    return found


def _is_held(now: float) -> ColumnElement[bool]:
    """Whether a row waits for longer than what is told together does."""
    row = tables.delivery.c
    return and_(row.state == WAITING, row.message.is_(None), row.due_at > now + WINDOW_S)


def _recall(past: _Past, stored: Row[Any], now: float) -> None:
    if stored.held:
        past.held = _Held(stored.firing, stored.due_at, stored.notice.get("unsaid", 0))
    else:
        # What is about to be tried counts as if it were tried now.
        past.firings.append((stored.firing, min(stored.due_at, now) if stored.tried_at is None else stored.tried_at))


def _suppress(connection: Connection, alert: int, channel: str, firing: int) -> None:
    row = tables.delivery.c
    untried = update(tables.delivery).where(row.alert == alert, row.channel == channel, row.state == WAITING)
    untried = untried.where(row.firing == firing, row.message.is_(None))
    connection.execute(untried.values(state=SUPPRESSED, error=SUPERSEDED))
