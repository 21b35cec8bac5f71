"""What is told of an alert that turned, for each channel that is to hear of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from scalescope_server.answers import single
from scalescope_server.delivery.notice import Notice, notice_key
from scalescope_server.rules.alert import Alert
from scalescope_server.rules.seen import unit_seen
from scalescope_server.rules.spec import Rule
from scalescope_server.rules.telling import Happened
from scalescope_server.store.alert_records import DeliveryRow
from scalescope_server.store.vigil import Vigil


def notice_of(rule: Rule, vigil: Vigil, alert: Alert, happened: Happened, scale: float | None) -> Notice:
    """What happened to ``alert`` as it stands now. ``scale``: in force at that update."""
    began = happened == "fired"
    return Notice(
        rule=rule.name,
        severity=rule.severity,
        run=vigil.run,
        run_name=vigil.name,
        project=vigil.project,
        happened=happened,
        firing=alert.firing,
        step=alert.fired_step if began else alert.since_step,
        at=(alert.fired_at if began else alert.since_at) or 0.0,
        first_step=alert.held_step if began else alert.fired_step,
        value=single(alert.value),
        culprit=None if alert.culprit is None else str(alert.culprit),
        scale=single(scale),
        unit=unit_seen(rule.when),
        condition=rule.when,
        text=rule.text,
        reason=rule.reason,
    )


def deliveries_of(notice: Notice, channels: Sequence[str]) -> list[DeliveryRow]:
    """A row of the outbox for each channel."""
    return [
        DeliveryRow(
            id=notice_key(notice, channel),
            channel=channel,
            rule=notice.rule,
            firing=notice.firing,
            happened=notice.happened,
            notice=msgspec.to_builtins(notice),
            at=notice.at,
        )
        for channel in channels
    ]


def ended(notice: Mapping[str, object], channel: str, at: float, why: str) -> DeliveryRow:
    """That a firing is over because its rule is no longer what it was, out of the notice with which it began."""
    began = msgspec.convert(notice, Notice)
    over = msgspec.structs.replace(began, happened="resolved", step=None, at=at, reason=why)
    return deliveries_of(over, [channel])[0]
