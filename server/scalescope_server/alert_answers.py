"""The answers' shapes about alerts and silences."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from scalescope_server.answers import single
from scalescope_server.rules.seen import SeenUnit, unit_seen
from scalescope_server.store.alert_counts import AlertCount
from scalescope_server.store.alert_records import AlertHistory, DeliveryLine, SilenceRow, TransitionRow
from scalescope_server.store.records import RunId, Single


class TransitionLine(Struct, frozen=True, kw_only=True):
    """One change of an alert's state. ``firing``: the number of the firing it belongs to, 0 for none.

    ``step``: null where time passed and no update came. ``sentence``: why it could not be evaluated, or what ended it
    beside its condition.
    """

    firing: int
    before: str
    after: str
    step: int | None
    at: float
    value: Single
    culprit: str | None
    sentence: str


class AlertLine(Struct, frozen=True, kw_only=True):
    """What one rule says of one run, with its newest transitions and deliveries, the newest first.

    ``rule``: null once the rule is deleted. ``open``: its newest firing is not over, whatever its state. ``unit``: how
    values are written, here and in the transitions: as a share of 1 in "%", in "ms", in "s", or "", plain.
    """

    id: int
    rule: int | None
    name: str
    severity: Literal["info", "warning", "critical"]
    run: RunId
    run_name: str
    project: str
    state: str
    since_step: int | None
    since_at: float
    value: Single
    unit: SeenUnit
    culprit: str | None
    sentence: str
    firings: int
    open: bool
    acknowledged_at: float | None
    muted_until: float | None
    transitions: list[TransitionLine]
    deliveries: list[DeliveryLine]


class AlertsAnswer(Struct, frozen=True):
    items: list[AlertLine]
    next: str | None


class AlertCountsAnswer(Struct, frozen=True):
    """``open``: how many alerts have begun to fire and are not over; ``items``: how those of each rule stand, but for
    the quiet ones.
    """

    open: int
    items: list[AlertCount]


class TransitionsAnswer(Struct, frozen=True):
    items: list[TransitionLine]
    next: str | None


class DeliveriesAnswer(Struct, frozen=True):
    items: list[DeliveryLine]
    next: str | None


class SilencesAnswer(Struct, frozen=True):
    items: list[SilenceRow]
    next: str | None


# What the description of the API (OpenAPI) names.
SHAPES = (
    AlertLine,
    AlertsAnswer,
    AlertCountsAnswer,
    TransitionsAnswer,
    DeliveriesAnswer,
    SilenceRow,
    SilencesAnswer,
)


def alert_line(found: AlertHistory) -> AlertLine:
    alert = msgspec.structs.asdict(found.alert)
    alert["open"] = alert.pop("is_open")
    spec = alert.pop("spec")
    return AlertLine(
        **(alert | {"value": single(found.alert.value)}),
        unit="" if spec is None else unit_seen(spec["when"]),
        transitions=[transition_line(moved) for moved in found.transitions],
        deliveries=found.deliveries,
    )


def transition_line(moved: TransitionRow) -> TransitionLine:
    return TransitionLine(**(msgspec.structs.asdict(moved) | {"value": single(moved.value)}))
