"""Alerts that end although their condition may still hold: their run is over, or their rule is not for it any more."""

from __future__ import annotations

import msgspec

from scalescope_server.rules.alert import Alert, State, Transition

RUN_ENDED = "the run has ended"
OUT_OF_SCOPE = "the run is no longer one that the rule is for"


def ended(alert: Alert, step: int | None, at: float, why: str) -> tuple[Alert, Transition]:
    """``alert`` once it is over, and the move that it made. ``step``: the run's last update."""
    transition = Transition(
        before=alert.state,
        after=State.RESOLVED if alert.is_open else State.QUIET,
        step=step,
        at=at,
        value=alert.value if alert.is_open else None,
        culprit=alert.culprit if alert.is_open else None,
        sentence=why,
        firing=alert.firing if alert.is_open else 0,
    )
    quiet = msgspec.structs.replace(
        alert, state=State.QUIET, since_step=step, since_at=at, counted=0, sentence=why, is_open=False
    )
    return quiet, transition


def is_over(alert: Alert, step: int) -> bool:
    """Whether it ended with its run, of which ``step`` is still the last update."""
    return alert.state is State.QUIET and alert.sentence == RUN_ENDED and alert.since_step == step
