"""Alerts: what they have been through, and what people asked of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, or_, select, update

from scalescope_server.store import tables
from scalescope_server.store.alert_records import (
    AlertHistory,
    AlertRow,
    DeliveryLine,
    TransitionRow,
)
from scalescope_server.store.cursors import packed_cursor, unpacked_cursor
from scalescope_server.store.errors import NoAlert
from scalescope_server.store.outbox import SUPPRESSED, WAITING
from scalescope_server.store.values import scale_of

MAX_ALERTS = 200
# What a list says of each alert's past.
SHOWN = 20
QUIET = "quiet"


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which alerts: in one of these states, of a run, open or not; None: any.

    Those that have never fired and are quiet are none.
    """

    states: tuple[str, ...] | None = None
    run: str | None = None
    is_open: bool | None = None


def list_alerts(
    connection: Connection, chosen: Chosen, *, limit: int, cursor: str | None, past: int = SHOWN
) -> tuple[list[AlertHistory], str | None]:
    """Alerts, those that moved last first, and the cursor of the next ones; ``limit`` is clamped. ``past``: how many of
    the newest transitions and deliveries of each.

    Raises:
        BadCursor: for a cursor that did not come from here.
    """
    row = tables.alert.c
    limit = min(max(limit, 1), MAX_ALERTS)
    query = _ALERTS.where(or_(row.state != QUIET, row.firings > 0), ~tables.run.c.doomed)
    if chosen.states is not None:
        query = query.where(row.state.in_(chosen.states))
    if chosen.run is not None:
        query = query.where(tables.run.c.id == chosen.run)
    if chosen.is_open is not None:
        query = query.where(row.is_open if chosen.is_open else ~row.is_open)
    if cursor is not None:
        at, key = unpacked_cursor(cursor, tuple[float, int])
        query = query.where(or_(row.since_at < at, and_(row.since_at == at, row.key < key)))
    found = connection.execute(query.order_by(row.since_at.desc(), row.key.desc()).limit(limit + 1)).all()
    page = found[:limit]
    after = packed_cursor((page[-1].since_at, page[-1].id)) if len(found) > limit else None
    return _histories(connection, page, past), after


def read_alert(connection: Connection, key: int) -> AlertHistory:
    """Raises :class:`NoAlert`."""
    found = connection.execute(_ALERTS.where(tables.alert.c.key == key)).one_or_none()
    if found is None:
        raise NoAlert(key)
    return _histories(connection, [found])[0]


def acknowledge(connection: Connection, key: int, at: float) -> None:
    """Somebody has taken up the firing that is open: no more is told of it than that it is over. :class:`NoAlert`."""
    row, sent = tables.alert.c, tables.delivery.c
    firing = connection.execute(select(row.firings).where(row.key == key)).scalar_one_or_none()
    if firing is None:
        raise NoAlert(key)
    connection.execute(update(tables.alert).where(row.key == key, row.is_open).values(acknowledged_at=at))
    waiting = update(tables.delivery).where(sent.alert == key, sent.firing == firing, sent.state == WAITING)
    untried = waiting.where(sent.happened == "fired", sent.message.is_(None))
    connection.execute(untried.values(state=SUPPRESSED, error="acknowledged before it was sent"))


def mute(connection: Connection, key: int, until: float | None) -> None:
    """Tell nothing of an alert until then, or from now on again. :class:`NoAlert`."""
    changed = update(tables.alert).where(tables.alert.c.key == key).values(muted_until=until)
    if connection.execute(changed).rowcount == 0:
        raise NoAlert(key)


def count_open(connection: Connection, runs: Sequence[int]) -> dict[int, int]:
    """Run -> how many of its alerts have begun to fire and are not over, whether or not there is data now."""
    row = tables.alert.c
    query = select(row.run, func.count().label("open")).where(row.is_open, row.run.in_(runs)).group_by(row.run)
    return {row.run: row.open for row in connection.execute(query)}


def transition_of(stored: Row[Any]) -> TransitionRow:
    """A row of ``transition``."""
    return TransitionRow(
        firing=stored.firing,
        before=stored.from_state,
        after=stored.to_state,
        step=stored.step,
        at=stored.at,
        value=scale_of(stored.value, stored.value_flag),
        culprit=stored.culprit,
        sentence=stored.sentence,
    )


def _histories(connection: Connection, found: Sequence[Row[Any]], past: int = SHOWN) -> list[AlertHistory]:
    if not found:
        return []
    transitions: dict[int, list[TransitionRow]] = {row.id: [] for row in found}
    deliveries: dict[int, list[DeliveryLine]] = {row.id: [] for row in found}
    for stored in connection.execute(_newest_transitions(transitions, past)):
        transitions[stored.alert].append(transition_of(stored))
    for stored in connection.execute(_newest_deliveries(deliveries, past)):
        values = {name: getattr(stored, name) for name in DeliveryLine.__struct_fields__}
        deliveries[stored.alert].append(DeliveryLine(**values))
    return [AlertHistory(_alert(row), transitions[row.id], deliveries[row.id]) for row in found]


def _newest_transitions(alerts: Iterable[int], past: int) -> Select[Any]:
    row = tables.transition.c
    place = func.row_number().over(partition_by=row.alert, order_by=row.key.desc()).label("place")
    ranked = select(tables.transition, place).where(row.alert.in_(list(alerts))).subquery()
    return select(ranked).where(ranked.c.place <= past).order_by(ranked.c.alert, ranked.c.place)


def _newest_deliveries(alerts: Iterable[int], past: int) -> Select[Any]:
    row = tables.delivery.c
    place = func.row_number().over(partition_by=row.alert, order_by=row.key.desc()).label("place")
    chosen = [row[name] for name in DeliveryLine.__struct_fields__]
    ranked = select(row.alert, place, *chosen).where(row.alert.in_(list(alerts)))
    found = ranked.subquery()
    return select(found).where(found.c.place <= past).order_by(found.c.alert, found.c.place)


def _alert(stored: Row[Any]) -> AlertRow:
    values = {name: getattr(stored, name) for name in AlertRow.__struct_fields__}
    return AlertRow(**values | {"value": scale_of(stored.value, stored.value_flag)})


_ELSEWHERE: dict[str, ColumnElement[Any]] = {
    "id": tables.alert.c.key.label("id"),
    "run": tables.run.c.id.label("run"),
    "run_name": tables.run.c.name.label("run_name"),
    "project": tables.run.c.project,
    "spec": tables.rule.c.spec,
}
_COLUMNS = [_ELSEWHERE[n] if n in _ELSEWHERE else tables.alert.c[n] for n in AlertRow.__struct_fields__]
_ALERTS: Select[Any] = (
    select(*_COLUMNS, tables.alert.c.value_flag)
    .join(tables.run, tables.run.c.key == tables.alert.c.run)
    .outerjoin(tables.rule, tables.rule.c.key == tables.alert.c.rule)
)
