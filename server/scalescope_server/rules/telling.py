"""What is told of an alert, and when: neither its state nor its history depends on it."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from scalescope_server.rules.alert import Alert
from scalescope_server.rules.expression import Duration, Updates

Happened = Literal["fired", "resolved"]


class Hush(Struct, frozen=True):
    """What people asked for, in seconds since the epoch; None: nothing.

    ``acknowledged_at``: somebody has taken up the firing that was on then. ``muted_until``: of this alert.
    ``silenced_until``: of its project.
    """

    acknowledged_at: float | None = None
    muted_until: float | None = None
    silenced_until: float | None = None


NO_HUSH = Hush()


def tell(
    alert: Alert, step: int | None, at: float, *, hush: Hush = NO_HUSH, cooldown: Duration | None = None
) -> tuple[Alert, Happened | None]:
    """What is to be told of ``alert`` at ``at``, once; the alert remembers that it was.

    To be asked after each transition, and again while an alert is open: a firing that began while it was muted, or
    within the cool-down, is told of when that is over and it is still on. One that was not told of is not told to be
    resolved either. Whoever has acknowledged a firing hears no more of it than that it is resolved.

    ``step``: the newest update, for a cool-down of updates.
    """
    if alert.is_open:
        return _begun(alert, step, at, hush, cooldown)
    if alert.told != alert.firing or alert.told_resolved == alert.firing:
        return alert, None
    # A resolution that nobody was to hear of is past, and not told of later.
    ended = msgspec.structs.replace(alert, told_resolved=alert.firing)
    return ended, None if _is_hushed(hush, at) else "resolved"


def _begun(
    alert: Alert, step: int | None, at: float, hush: Hush, cooldown: Duration | None
) -> tuple[Alert, Happened | None]:
    if alert.told == alert.firing or _is_hushed(hush, at) or _is_acknowledged(alert, hush):
        return alert, None
    if cooldown is not None and _is_cooling(alert, step, at, cooldown):
        return alert, None
    return msgspec.structs.replace(alert, told=alert.firing, told_step=step, told_at=at), "fired"


def _is_hushed(hush: Hush, at: float) -> bool:
    return any(until is not None and at < until for until in (hush.muted_until, hush.silenced_until))


def _is_acknowledged(alert: Alert, hush: Hush) -> bool:
    return hush.acknowledged_at is not None and alert.fired_at is not None and hush.acknowledged_at >= alert.fired_at


def _is_cooling(alert: Alert, step: int | None, at: float, cooldown: Duration) -> bool:
    if isinstance(cooldown, Updates):
        return step is not None and alert.told_step is not None and step - alert.told_step < cooldown.count
    return alert.told_at is not None and at - alert.told_at < cooldown.seconds
