"""What updates have in common, of one optimizer, that are ordinary enough for a lane."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from scalescope.taps.routine.track import Track
from scalescope.taps.windows.windows import UpdateFacts

# Its name, and what those who hear in full are told of it: see ``Notes._tell``.
Moment = tuple[Any, ...]
# Whose gradients were clipped, by what and to which limit.
Clip = tuple[tuple[int, ...], Literal["norm", "value"], float | None]


class Course(NamedTuple):
    """How every update of a lane goes.

    Attributes:
        explicit: whether gradients are as they will be stepped with before the step is asked for: unscaled, if at all.
        clip: then the one clipping after it; None without one.
        facts: what is told of it.
    """

    explicit: bool
    clip: Clip | None
    facts: UpdateFacts


def course_of(
    tracks: Iterable[Track], facts: UpdateFacts, *, passes: int, clips: Sequence[Clip], explicit: bool
) -> Course | None:
    """That of an update which is over, if the next one is known by what is looked at in a lane; else None."""
    track, *others = tracks
    # That a gradient is of one pass alone, its version tells: to what was left of the last update a pass adds one.
    told = track.anew is not None and (track.at is None or track.at[1] >= track.anew)
    if others or not told or passes != 1 or len(clips) > bool(explicit):
        return None
    return Course(explicit, clips[0] if clips else None, facts)
