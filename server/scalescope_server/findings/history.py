"""What the attempted updates tell of the loss scale, folded one update at a time.

The fold is the same however the updates are cut into passes, so a finding is the same live, on a finished
run and after a restart. Its state is bounded whatever the run's length.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.store.judging import StepRow

# So many updates in a row without a skip say that the scale has found its place: while it is still too high,
# gradients that grow in the first updates cost another halving sooner than that.
CALM_UPDATES = 20
# From 2^32, the highest start in use, 32 halvings reach 1. What skips more often than that before it is calm
# is not settling, and is judged by its rate like any other.
MOST_CALIBRATION_SKIPS = 32
# What a training may lose without anyone minding. An interval of 200 costs 0.5 %, one of 100 just under 1 %;
# one of 20 costs 4.5 % and one of 5 costs 16 % (measured), for as long as the run lasts.
SKIP_SHARE = 0.01
# Whatever its length, the window reaches back no further than so many skips: a rate is well known by then.
WINDOW_SKIPS = 256
KEPT_CALIBRATIONS = 50


class Skip(Struct, frozen=True):
    """A skipped update.

    ``after_growth``: how many updates earlier the scale was doubled, null where it was not since the last
    halving. Skips in a row are one occasion and have what the first of them has, down to the scale before the doubling:
    what is skipped below that was no matter of it.
    """

    step: int
    scale: float
    after_growth: int | None
    culprit: str | None


class Calibration(Struct, frozen=True):
    """The skips of one segment before its scale settled.

    ``lowest`` is the last scale that was skipped, ``to_scale`` that of the next clean update (null before
    one came). It is ``settled`` when no more skips can belong to it. ``broken``: in how many of them the loss was not
    finite, which no scale mends.
    """

    first_step: int
    last_step: int
    skips: int
    from_scale: float
    lowest: float
    to_scale: float | None = None
    settled: bool = False
    broken: int = 0


class History(Struct, frozen=True):
    """Everything the scale's detectors need.

    ``skips`` and ``growths`` (the steps at which a doubled scale was first used) are those since the scale
    settled, within the window; ``settled_updates`` counts since then without a bound, ``window_from`` is the
    step before which skips were forgotten. ``first_probe``: the first skip of the run that followed a doubling.
    """

    segment: int = -1
    segment_from: int = -1
    last_step: int = -1
    scale: float | None = None
    settled: bool = False
    clean: int = 0
    growth_step: int | None = None
    skips: tuple[Skip, ...] = ()
    growths: tuple[int, ...] = ()
    settled_updates: int = 0
    window_from: int = -1
    first_probe: int | None = None
    calibrations: tuple[Calibration, ...] = ()

    def skip_share(self, rules: ScalerRules) -> float:
        """The part of the updates since the scale settled, within the window, that was skipped."""
        return len(self.skips) / max(self.window_updates(rules), 1)

    def window_updates(self, rules: ScalerRules) -> int:
        """Updates since the scale settled, at most a window of them."""
        return min(self.settled_updates, rules.window, self.last_step - self.window_from)


def updates_of_segment(history: History) -> int:
    """Those of the newest segment, from its first with a scale to its last."""
    return history.last_step - history.segment_from + 1


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
    if not history.settled and (grown or _is_calm(history)):
        history = _settled(history)
    history = _after_update(history, step, scale, grown=grown)
    return _windowed(history, rules)


def _restarted(history: History, step: StepRow) -> History:
    """A new segment calibrates anew; what is known of the earlier ones stays."""
    return msgspec.structs.replace(
        history,
        segment=step.segment,
        segment_from=step.step,
        scale=None,
        settled=False,
        clean=0,
        growth_step=None,
        # An older segment that came late may reach beyond the first step of this one.
        window_from=min(history.window_from, step.step - 1),
        calibrations=_closed(history.calibrations),
    )


def _is_calm(history: History) -> bool:
    found = _open_calibration(history)
    return history.clean >= CALM_UPDATES or (found is not None and found.skips > MOST_CALIBRATION_SKIPS)


def _settled(history: History) -> History:
    # The clean updates before the first doubling belong to its cycle: without them the first few rejected
    # doublings would read as a higher rate than the interval explains.
    updates = history.settled_updates + history.clean
    closed = _closed(history.calibrations)
    return msgspec.structs.replace(history, settled=True, settled_updates=updates, calibrations=closed)


def _after_update(history: History, step: StepRow, scale: float, *, grown: bool) -> History:
    changed = msgspec.structs.replace(
        history,
        last_step=step.step,
        scale=scale,
        clean=0 if step.skipped else history.clean + 1,
        settled_updates=history.settled_updates + history.settled,
        growths=(*history.growths, step.step) if grown and history.settled else history.growths,
    )
    if not history.settled:
        return msgspec.structs.replace(changed, calibrations=_calibrating(history, step, scale))
    if not step.skipped:
        return changed
    skip = Skip(step.step, scale, _after_growth(history, step.step, scale), step.culprit)
    probe = history.first_probe if skip.after_growth is None else step.step
    first = probe if history.first_probe is None else history.first_probe
    return msgspec.structs.replace(changed, skips=(*history.skips, skip), first_probe=first)


def _after_growth(history: History, step: int, scale: float) -> int | None:
    row = [skip for place, skip in enumerate(reversed(history.skips), 1) if skip.step == step - place]
    if row:
        return row[-1].after_growth if scale >= row[-1].scale / 2 else None
    return None if history.growth_step is None else step - history.growth_step


def _calibrating(history: History, step: StepRow, scale: float) -> tuple[Calibration, ...]:
    known, found = history.calibrations, _open_calibration(history)
    if not step.skipped:
        if found is None or found.to_scale is not None:
            return known
        return (*known[:-1], msgspec.structs.replace(found, to_scale=scale))
    if found is None:
        first = Calibration(step.step, step.step, 1, scale, scale, broken=int(step.broken))
        return (*known, first)[-KEPT_CALIBRATIONS:]
    skips, broken = found.skips + 1, found.broken + step.broken
    longer = msgspec.structs.replace(
        found, last_step=step.step, skips=skips, lowest=scale, to_scale=None, broken=broken
    )
    return (*known[:-1], longer)


def _open_calibration(history: History) -> Calibration | None:
    found = history.calibrations
    return found[-1] if found and not found[-1].settled else None


def _closed(calibrations: tuple[Calibration, ...]) -> tuple[Calibration, ...]:
    if not calibrations or calibrations[-1].settled:
        return calibrations
    return (*calibrations[:-1], msgspec.structs.replace(calibrations[-1], settled=True))


def _windowed(history: History, rules: ScalerRules) -> History:
    """Without the skips and doublings that have left the window."""
    start = max(history.window_from, history.last_step - rules.window)
    if len(history.skips) > WINDOW_SKIPS:
        start = max(start, history.skips[-WINDOW_SKIPS - 1].step)
    gone = (history.skips and history.skips[0].step <= start) or (history.growths and history.growths[0] <= start)
    if not gone:
        return history
    return msgspec.structs.replace(
        history,
        window_from=start,
        skips=tuple(skip for skip in history.skips if skip.step > start),
        growths=tuple(step for step in history.growths if step > start),
    )
