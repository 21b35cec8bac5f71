"""The words that the store and the rooms above share for rules and alerts.

Plain frozen structs, no SQL. Times are seconds since the epoch. A ``value`` may be NaN or infinite, or None.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from msgspec import Struct

from scalescope_server.store.judging import Position
from scalescope_server.store.records import RunId

DeliveryState = Literal["waiting", "delivered", "failed", "suppressed"]


class RuleRow(Struct, frozen=True, kw_only=True):
    """A stored rule. ``spec``: the whole rule, as the room of the rules reads it.

    ``pack``: the version of the built-in pack that it came with, None for a user's own; ``edited``: whether a user has
    changed it since. ``revision``: that of the rule book at its last change.
    """

    id: int
    name: str
    enabled: bool
    spec: dict[str, object]
    pack: int | None
    edited: bool
    revision: int
    created_at: float
    changed_at: float


class RuleBook(Struct, frozen=True):
    """All rules as they stood at one revision."""

    revision: int = 0
    rules: tuple[RuleRow, ...] = ()


class TransitionRow(Struct, frozen=True, kw_only=True):
    """One change of an alert's state. ``step``: None where time passed and no update came."""

    firing: int
    before: str
    after: str
    step: int | None
    at: float
    value: float | None
    culprit: str | None
    sentence: str


class DeliveryRow(Struct, frozen=True, kw_only=True):
    """What one turn of an alert has to tell one channel, as it goes into the outbox (see ``delivery``)."""

    id: str
    channel: str
    rule: str
    firing: int
    happened: str
    notice: dict[str, object]
    at: float


class AlertJudged(Struct, frozen=True, kw_only=True):
    """An alert after one pass, and what it went through in it. ``rule``: the rule's id, ``kept``: all of its state."""

    rule: int
    name: str
    severity: str
    revision: int
    state: str
    since_step: int | None
    since_at: float
    value: float | None
    culprit: str | None
    sentence: str
    firings: int
    is_open: bool
    kept: bytes
    transitions: tuple[TransitionRow, ...] = ()
    deliveries: tuple[DeliveryRow, ...] = ()


class Watched(Struct, frozen=True):
    """What one pass over a run's rules commits. ``revision``: of the rule book that they are from.

    ``position``: the last update at which they were evaluated. ``fence`` as in :class:`Judged`. ``attempted``: it holds
    as long as no more updates than these are stored; None: whatever is.
    """

    run: RunId
    revision: int
    position: Position
    alerts: tuple[AlertJudged, ...] = ()
    fence: int | None = None
    attempted: int | None = None

    @property
    def tells(self) -> bool:
        """Whether the outbox gets anything to deliver."""
        return any(alert.deliveries for alert in self.alerts)


class Committed(Enum):
    """What became of a pass that was to be committed. Nothing of it is stored unless it is ``DONE``."""

    DONE = "stored"
    SUPERSEDED = "another server has judged the run since"
    OUTDATED = "a rule has changed since, or an update come where none was to come"


class KeptAlert(Struct, frozen=True):
    """What is remembered of a rule on a run between two passes. ``kept``: empty where it begins anew.

    ``acknowledged_at``: of its open firing, if it was; ``muted_until``: as somebody has set it.
    """

    rule: int
    revision: int
    firings: int
    acknowledged_at: float | None
    muted_until: float | None
    kept: bytes


class AlertRow(Struct, frozen=True, kw_only=True):
    """An alert with the run that it is of. ``rule``, and ``spec``, as it is stored: None once the rule is deleted."""

    id: int
    rule: int | None
    spec: dict[str, Any] | None
    name: str
    severity: str
    run: RunId
    run_name: str
    project: str
    state: str
    since_step: int | None
    since_at: float
    value: float | None
    culprit: str | None
    sentence: str
    firings: int
    is_open: bool
    acknowledged_at: float | None
    muted_until: float | None


class DeliveryLine(Struct, frozen=True, kw_only=True):
    """One notice of an alert in the outbox, and what became of it."""

    id: str
    channel: str
    firing: int
    happened: str
    at: float
    state: DeliveryState
    attempts: int
    tried_at: float | None
    error: str | None


class AlertHistory(Struct, frozen=True):
    """An alert, its newest transitions and deliveries, the newest first."""

    alert: AlertRow
    transitions: list[TransitionRow]
    deliveries: list[DeliveryLine]


class SilenceRow(Struct, frozen=True, kw_only=True):
    """Nothing is told of runs in projects that the glob ``project`` matches, from ``starts_at`` until ``ends_at``."""

    id: int
    project: str
    starts_at: float
    ends_at: float
    reason: str
    created_at: float
