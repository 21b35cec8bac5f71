"""What rules are evaluated over: updates in their order, and that time passes where none comes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

# What a run is when no update comes: only a trainer that should be at work can be late with one.
RunState = Literal["running", "silent", "crashed", "finished"]


class Tick(Struct, frozen=True):
    """One attempted update. Ticks of a run come in the order of (``segment``, ``step``), each once.

    ``at``: seconds since the epoch when it was stored, by the server's clock; the trainer's where that is all there is.
    ``values``: the series of rank 0 by name (scale, skipped, loss, the user's own); truths are 0 and 1, NaN and
    infinities stand as they are, and what was not told at this update is absent or None.
    ``layers``: measure -> parameter -> value, at sampled updates alone. ``ranks``: series -> rank -> value, where there
    are several ranks. ``findings``: codes of the findings that are open after this update.
    """

    segment: int
    step: int
    at: float
    values: Mapping[str, float | None]
    layers: Mapping[str, Mapping[str, float]] = {}
    ranks: Mapping[str, Mapping[int, float | None]] = {}
    findings: frozenset[str] = frozenset()


class Pulse(Struct, frozen=True):
    """No update: time passes. ``at`` and ``last_update_at``: seconds since the epoch, by one clock.

    ``last_update_at`` is None before a run's first update.
    """

    at: float
    last_update_at: float | None
    state: RunState
