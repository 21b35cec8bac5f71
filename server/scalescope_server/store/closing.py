"""Ending the alerts of a rule that is no longer what it was: switched off, changed or deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from sqlalchemy import Connection, Row, insert, or_, select, update

from scalescope_server.store import tables
from scalescope_server.store.alert_records import DeliveryRow
from scalescope_server.store.notices import enter_deliveries
from scalescope_server.store.values import Flag

QUIET, RESOLVED = "quiet", "resolved"


class Ending(Protocol):
    """Makes what a channel is told of a firing that is over out of the notice with which it began."""

    def __call__(self, notice: Mapping[str, object], channel: str, at: float, why: str) -> DeliveryRow: ...


def close_alerts(connection: Connection, rule: int, at: float, why: str, ending: Ending) -> None:
    """Let the alerts of ``rule`` be quiet and begin anew. Who was told of a firing is told ``why`` it ends."""
    row = tables.alert.c
    of_rule = select(tables.alert).where(row.rule == rule, or_(row.state != QUIET, row.kept != b""))
    for alert in connection.execute(of_rule.with_for_update()).all():
        if alert.state != QUIET:
            connection.execute(insert(tables.transition), _transition(alert, at, why))
        if alert.is_open:
            enter_deliveries(connection, alert.run, _endings(connection, alert, at, why, ending), alert.key)
        connection.execute(update(tables.alert).where(row.key == alert.key).values(_quiet(at, why)))


def _quiet(at: float, why: str) -> dict[str, Any]:
    return {
        "state": QUIET,
        "since_step": None,
        "since_at": at,
        "is_open": False,
        "acknowledged_at": None,
        "sentence": why,
        "kept": b"",
    }


def _transition(alert: Row[Any], at: float, why: str) -> dict[str, Any]:
    return {
        "alert": alert.key,
        "firing": alert.firings if alert.is_open else 0,
        "from_state": alert.state,
        "to_state": RESOLVED if alert.is_open else QUIET,
        "step": None,
        "at": at,
        "value": 0.0,
        "value_flag": int(Flag.ABSENT),
        "culprit": None,
        "sentence": why,
    }


def _endings(connection: Connection, alert: Row[Any], at: float, why: str, ending: Ending) -> list[DeliveryRow]:
    row = tables.delivery.c
    told = select(row.notice, row.channel).where(
        row.alert == alert.key, row.firing == alert.firings, row.happened == "fired"
    )
    found = connection.execute(told.where(row.state != "suppressed")).all()
    return [ending(notice, channel, at, why) for notice, channel in found]
