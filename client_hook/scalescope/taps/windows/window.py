"""What is gathered of one window: the backward passes of one optimizer, to the step that consumes them.

A window in which nothing unusual happens is a few attribute writes: what was not heard of stays what the class
says. Scales are values as they were read, so that equal neighbours are mostly one object.
"""

from __future__ import annotations

from collections.abc import Sequence

from scalescope.readback import Value, number, ready
from scalescope.taps.windows.clip import ClipCall, coefficient

# What one window keeps of its parts: a loop whose windows never close gathers for ever.
_MAX_RUNS = 256
_MAX_NORMS = 64

# A scale, and how many backward passes in a row ran under it; None where there is no scaler.
Run = tuple[Value | None, int]


class Clips:
    """The clippings of one window that were alike: of one kind, in the same units."""

    def __init__(self, call: ClipCall, when: str, scale: Value | None, backwards: int) -> None:
        self.kind = call.kind
        self.limit = call.limit
        self.when = when
        self.scale = scale
        # How many passes were in the gradients at the last of them.
        self.backwards = backwards
        self.calls = 0
        self.norms: list[Value] = []

    def add(self, norm: Value | None, backwards: int) -> None:
        self.calls += 1
        self.backwards = backwards
        if norm is not None and len(self.norms) < _MAX_NORMS:
            self.norms.append(norm)

    def like(self, call: ClipCall, when: str) -> bool:
        return (self.kind, self.limit, self.when) == (call.kind, call.limit, when)

    def factors(self, scale: float = 1.0) -> list[float]:
        """What each norm's gradients were multiplied by, had they been divided by ``scale`` before."""
        limit = self.limit
        return [] if limit is None else [coefficient(limit, number(norm) / scale) for norm in self.norms]


class Window:
    """See the module. ``since`` is how often the scaler's ``scale()`` had been called when it began.

    Attributes:
        runs: scales of the passes that were unscaled, or are to be.
        late: those of passes after ``unscale_``.
        unscale: who unscaled; None without a scaler.
        unscaled_by: the scale that gradients were divided by.
        found: what the scaler found when it did.
        clips: by kind and moment.
        passes: those in the gradients when the last one was heard.
        micro_batches, fresh: those in the gradients, and whether they began at zero; set when it ends.
        stale: parameters, device by device, whose gradient was not finite before the first backward.
        at_step: those whose gradient was not finite when the optimizer was asked to step, after ``unscale_``.
        in_weights: the same of parameters, looked at when this window was skipped.
        last_clean: the last update that the scaler found clean, where the weights were looked at.
    """

    runs: tuple[Run, ...] = ()
    late: tuple[Run, ...] = ()
    unscale: str | None = None
    unscaled_by: Value | None = None
    found: Sequence[Value] = ()
    clips: tuple[Clips, ...] = ()
    passes: int | None = None
    micro_batches: int | None = None
    fresh: bool | None = None
    stale: Sequence[Value] = ()
    at_step: Sequence[Value] = ()
    in_weights: Sequence[Value] = ()
    last_clean: int | None = None
    loss_scaled = True
    no_sync = False
    # Whether the optimizer's own hooks were heard in the scaler's step.
    hooked = False

    def __init__(self, since: int) -> None:
        self.since = since

    @property
    def begun(self) -> bool:
        """Whether anything was heard of it."""
        return bool(self.runs or self.late or self.clips or self.stale or self.unscale)

    @property
    def backwards(self) -> int:
        return sum(count for _, count in self.runs)

    def hear(self, scale: Value | None, passes: int | None) -> None:
        """A backward pass ran; ``passes`` are in the gradients now, 1 where they began anew in it."""
        if self.unscaled_by is not None:
            self.late = _longer(self.late, scale)
        elif passes == 1 or not self.runs:
            self.clips = () if self.runs else self.clips
            self.runs = ((scale, 1),)
        else:
            self.runs = _longer(self.runs, scale)

    def scaled_by(self, scale: Value | None) -> None:
        """Its losses so far were multiplied by ``scale``, as is known only now."""
        self.loss_scaled = True
        self.runs = ((scale, self.backwards),) if self.runs else ()
        for clips in self.clips:
            if clips.backwards and self.unscaled_by is None:
                clips.when, clips.scale = "scaled", scale

    def clip(self, call: ClipCall, norm: Value | None, scale: Value | None) -> None:
        """Its gradients are clipped, while ``scale`` is in force (None without a scaler)."""
        scaled = scale is not None and self.unscaled_by is None and bool(self.runs)
        when = "scaled" if scaled else "unscaled"
        clips = next((clips for clips in self.clips if clips.like(call, when)), None)
        if clips is None:
            clips = Clips(call, when, scale if scaled else None, self.backwards)
            self.clips = (*self.clips, clips)[:_MAX_NORMS]
        clips.add(norm, self.backwards)

    def ready(self) -> bool:
        """Whether all its numbers are on the host. Asks, never waits."""
        values = [*self.found, *self.stale, *self.at_step, *self.in_weights]
        values += [scale for scale, _ in (*self.runs, *self.late) if scale is not None]
        values += [] if self.unscaled_by is None else [self.unscaled_by]
        return all(map(ready, values)) and all(ready(norm) for clips in self.clips for norm in clips.norms)


def _longer(runs: tuple[Run, ...], scale: Value | None) -> tuple[Run, ...]:
    if (runs and runs[-1][0] is scale) or len(runs) >= _MAX_RUNS:
        return (*runs[:-1], (runs[-1][0], runs[-1][1] + 1))
    return (*runs, (scale, 1))
