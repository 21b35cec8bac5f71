"""What the attempted updates tell of the loss scale, folded one update at a time.

The fold is the same however the updates are cut into passes, so a finding is the same live, on a finished
run and after a restart.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from scalescope_server.store.records import StepRow

# So many updates in a row without a skip say that the scale has found its place: while it is still too high,
# gradients that grow in the first updates cost another halving sooner than that.
CALM_UPDATES = 20
# From 2^32, the highest start in use, 32 halvings reach 1. What skips more often than that before it is calm
# is not settling, and is judged by its rate like any other.
MOST_CALIBRATION_SKIPS = 32
# What a training may lose without anyone minding. An interval of 200 costs 0.5 %, one of 100 just under 1 %;
# one of 20 costs 4.5 % and one of 5 costs 16 % (measured), for as long as the run lasts.
SKIP_SHARE = 0.01
# The window over which a skip rate is judged, in growth intervals, and at least so many updates: a probing
# scaler skips about once an interval, and a rate needs a few of them.
WINDOW_INTERVALS = 4
WINDOW_UPDATES = 1000


class ScalerRules(Struct, frozen=True):
    """The settings that explain a scaler's moves. ``growth_interval``: clean updates before a doubling."""

    growth_interval: int

    @property
    def probe_share(self) -> float:
        """The share of updates that probing alone costs: one skip for each interval of clean ones."""
        return 1 / (self.growth_interval + 1)

    @property
    def window(self) -> int:
        return max(WINDOW_UPDATES, WINDOW_INTERVALS * self.growth_interval)


class Skip(Struct, frozen=True):
    """A skipped update.

    ``after_growth``: how many updates earlier the scale was doubled, null where it was not since the last
    halving. Skips in a row are one occasion and all have what the first of them has.
    """

    step: int
    scale: float
    after_growth: int | None
    culprit: str | None


class Calibration(Struct, frozen=True):
    """The skips of one segment before its scale settled; ``settled_at`` is null until it has."""

    first_step: int
    last_step: int
    skips: int
    from_scale: float
    to_scale: float
    settled_at: int | None


class History(Struct, frozen=True):
    """Everything the scale's detectors need, bounded whatever the run's length.

    ``skips`` and ``growths`` (the steps at which a doubled scale was first used) are those since the scale
    settled, within the window; ``settled_updates`` counts since then without a bound.
    """

    segment: int = -1
    last_step: int = -1
    scale: float | None = None
    settled_at: int | None = None
    clean: int = 0
    growth_step: int | None = None
    skips: tuple[Skip, ...] = ()
    growths: tuple[int, ...] = ()
    settled_updates: int = 0
    calibrations: tuple[Calibration, ...] = ()

    def skip_share(self, rules: ScalerRules) -> float:
        """The part of the updates since the scale settled, within the window, that was skipped."""
        return len(self.skips) / max(self.window_updates(rules), 1)

    def window_updates(self, rules: ScalerRules) -> int:
        """Updates since the scale settled, at most a window of them."""
        return min(self.settled_updates, rules.window)


def advance(history: History, step: StepRow, rules: ScalerRules) -> History:
    """``history`` after ``step``, which follows it. An update without a scale says nothing."""
    scale = step.scale
    if scale is None:
        return history
    if step.segment != history.segment:
        history = _restarted(history, step)
    grown = history.scale is not None and scale > history.scale
    if history.scale is not None and scale != history.scale:
        history = msgspec.structs.replace(history, growth_step=step.step if grown else None)
    if history.settled_at is None and (grown or _is_calm(history)):
        history = _settled(history, step.step)
    history = _after_update(history, step, scale, grown=grown)
    return _windowed(history, rules)


def _restarted(history: History, step: StepRow) -> History:
    """A new segment calibrates anew; what is known of the earlier ones stays."""
    return msgspec.structs.replace(
        history, segment=step.segment, scale=None, settled_at=None, clean=0, growth_step=None
    )


def _is_calm(history: History) -> bool:
    found = history.calibrations
    endless = bool(found) and found[-1].settled_at is None and found[-1].skips > MOST_CALIBRATION_SKIPS
    return endless or history.clean >= CALM_UPDATES


def _settled(history: History, step: int) -> History:
    found = history.calibrations
    if found and found[-1].settled_at is None:
        found = (*found[:-1], msgspec.structs.replace(found[-1], settled_at=step))
    # The clean updates before the first doubling belong to its cycle: without them the first few rejected
    # doublings would read as a higher rate than the interval explains.
    updates = history.settled_updates + history.clean
    return msgspec.structs.replace(history, settled_at=step, settled_updates=updates, calibrations=found)


def _after_update(history: History, step: StepRow, scale: float, *, grown: bool) -> History:
    settled = history.settled_at is not None
    changed = msgspec.structs.replace(
        history,
        last_step=step.step,
        scale=scale,
        clean=0 if step.skipped else history.clean + 1,
        settled_updates=history.settled_updates + settled,
        growths=(*history.growths, step.step) if grown and settled else history.growths,
    )
    if not step.skipped:
        return changed
    if not settled:
        return msgspec.structs.replace(changed, calibrations=_calibrating(history, step, scale))
    skip = Skip(step.step, scale, _after_growth(history, step.step), step.culprit)
    return msgspec.structs.replace(changed, skips=(*history.skips, skip))


def _after_growth(history: History, step: int) -> int | None:
    if history.skips and history.skips[-1].step == step - 1:
        return history.skips[-1].after_growth
    return None if history.growth_step is None else step - history.growth_step


def _calibrating(history: History, step: StepRow, scale: float) -> tuple[Calibration, ...]:
    found = history.calibrations
    if found and found[-1].settled_at is None:
        longer = msgspec.structs.replace(found[-1], last_step=step.step, skips=found[-1].skips + 1, to_scale=scale)
        return (*found[:-1], longer)
    return (*found, Calibration(step.step, step.step, 1, scale, scale, None))


def _windowed(history: History, rules: ScalerRules) -> History:
    start = history.last_step - rules.window
    if not (history.skips and history.skips[0].step <= start) and not (history.growths and history.growths[0] <= start):
        return history
    return msgspec.structs.replace(
        history,
        skips=tuple(skip for skip in history.skips if skip.step > start),
        growths=tuple(step for step in history.growths if step > start),
    )
