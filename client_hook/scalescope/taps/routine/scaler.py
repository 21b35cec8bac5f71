"""Routine updates of a loop with a scaler, which says when they are over.

Losses are multiplied by a scale at rest, the gradients of each optimizer are unscaled once and found finite, perhaps
clipped, and stepped with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.amp import GradScaler

from scalescope.readback import Value
from scalescope.taps.backward.freshness import stamp_of
from scalescope.taps.facts import is_among_ranks
from scalescope.taps.loop import Loop
from scalescope.taps.routine.course import Moment
from scalescope.taps.routine.notes import MOST, Notes
from scalescope.taps.routine.scaler_lane import LANES, ScalerLane
from scalescope.taps.routine.track import Track
from scalescope.taps.scaler.culprits import Found
from scalescope.taps.scaler.scale import Reader
from scalescope.taps.windows.windows import UpdateFacts
from scalescope.updates import OptimizerVerdict

_FINITE: Sequence[Value] = (0.0,)


class InFull(Protocol):
    """Who hears in full what was only noted."""

    def found(
        self,
        optimizer: torch.optim.Optimizer,
        inverse: torch.Tensor | None,
        found: Found,
        scale: Value | None,
        asked: bool,
    ) -> None:
        """The gradients of an optimizer were unscaled."""

    def caught_up(self) -> None:
        """All that was noted has been told."""

    def goes_on_stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """The scaler is in the middle of a step that it was asked for."""


class ScalerNotes(Notes):
    """Notes them at each call of the scaler's."""

    lane: ScalerLane | None

    def __init__(self, loop: Loop, scale: Reader, tracker: Reader, in_full: InFull) -> None:
        super().__init__(loop)
        # Whether all verdicts are known before an update: among ranks they may become one in the end.
        self.sure = False
        # Who stepped since the last update, by the optimizer's id, and whether by the scaler.
        self.stepped: dict[int, bool] = {}
        # The scale before an update that changed it, which is no routine any more.
        self.outgrown: Value | None = None
        # Whether a scaler's step says by itself what it found; and of a step that was begun and not heard yet: of whom
        # it is, the inverse of the scale, what was found, and which moment that was.
        self.trusting = False
        self.untold: tuple[torch.optim.Optimizer, torch.Tensor | None, Found, int] | None = None
        # In the place of what was found where that is finite: what torch has made for it is torch's to let go of.
        self._finite: Found = {torch.device("cpu"): torch.zeros((), dtype=torch.float32, device="cpu")}
        # By which scaler there is a lane.
        self._lane_of = 0
        self._scale = scale
        self._tracker = tracker
        self._in_full = in_full
        self._among_ranks = False

    def scaled(self, scaler: GradScaler) -> bool:
        """A loss was scaled."""
        if not self.noting:
            return False
        loop = self._loop
        if loop.edge.silent:
            return self.alone
        regular = self._find() and len(self._moments) < MOST if self._losses else self._start()
        if not regular or (loop.windows.parallel and not loop.windows.syncs()):
            return self.leave()
        if not self._scale.is_current(scaler):
            return self.leave(odd=False)
        self._losses += 1
        self._moments.append(("scaled", self._scale.value))
        return self.alone

    def unscaling(self, optimizer: torch.optim.Optimizer) -> bool:
        """In a rehearsal: gradients are complete and still scaled."""
        track = self.tracks.get(id(optimizer))
        if track is None or track.found is not None or not self._find() or not (track.passes and self._losses):
            return self.leave()
        return False

    def unscaled(self, optimizer: torch.optim.Optimizer, found: Found, *, asked: bool) -> bool:
        """In a rehearsal: they were checked, in a step that the scaler was ``asked`` for, or before one."""
        if not self.noting:
            return False
        track = self.tracks[id(optimizer)]
        track.see_unscaled()
        return self._check(track, optimizer, found, asked=asked)

    def took(self, asked: bool, optimizer: torch.optim.Optimizer, inverse: torch.Tensor | None, found: Found) -> bool:
        """Where noting is all that is done: both of the above, after it."""
        track = self.tracks.get(id(optimizer))
        regular = track is not None and track.found is None
        regular = self._find(track) and regular
        if track is None or not (regular and track.passes and self._losses):
            return self.leave()
        loop = self._loop
        loop.backward_ran = True
        if track.number == 0:
            loop.note_rate()
        if asked and self.trusting and not track.decides and len(found) == 1:
            # The scaler steps right now where it found all finite, and so tells by its step.
            self.untold = (optimizer, inverse, found, len(self._moments))
            track.found = kept = found if self._among_ranks else self._finite
            track.asked = True
            self._moments.append(("found", optimizer, None, kept, self._scale.value, True))
            return True
        return self._check(track, optimizer, found, asked=asked)

    def passed_over(self) -> None:
        """The scaler did not step after all, or the step failed."""
        if self.untold is not None:
            optimizer, inverse, found, place = self.untold
            self._moments[place] = ("found", optimizer, inverse, found, *self._moments[place][4:])
            self.untold = None
        self.leave(odd=False)

    def stepping(self, optimizer: torch.optim.Optimizer) -> bool:
        """The scaler is asked for a step of what was unscaled before."""
        if not self.noting:
            return False
        track = self.tracks[id(optimizer)]
        if track.asked or not track.is_through():
            return self.leave()
        track.asked = True
        self._moments.append(("asked", track.number))
        return self.alone

    def agreed(self) -> bool:
        """Before ``update``, among ranks: whether all verdicts are still what they were."""
        found = [tensor for track in self.tracks.values() if track.found for tensor in track.found.values()]
        if any(tensor.item() for tensor in found):
            self.leave(odd=False)
        return self.alone

    def updated(self, scaler: GradScaler, was_set: bool) -> bool:
        """After ``update``: the update is over."""
        if not self.noting:
            return False
        alike: list[Any] = [self._scale.value, self._raises, self._losses, *self._clips]
        for key, track in self.tracks.items():
            if not (track.asked and self.stepped.get(key) and track.first() == track.last() == track.to_come):
                return self.leave()
            alike += (track.passes, track.fresh, track.explicit)
        if was_set:
            return self.leave(odd=False)
        if not self.alone:
            # A rehearsal: the rest is heard in full.
            return False
        scale, tracker = self._scale.value, self._tracker.value
        if not self._scale.reread(scaler):
            self.outgrown = scale
            return self.leave(odd=False)
        self._tracker.reread(scaler)
        self.stepped.clear()
        self._close(alike, scale, tracker)
        return True

    def enter(self, scaler: GradScaler) -> None:
        """After an update of ``scaler``, which nobody else hears: if it was ordinary, the next ones go in a lane."""
        here = self._scale.memory is not None and self._tracker.memory is not None
        if not (here and self.trusting and self.sure):
            return
        _, raises, losses, *clips, passes, fresh, explicit = self._alike
        tracks = self.tracks.values()
        if losses != 1 or any(track.decides or track.bump is None for track in tracks):
            return
        course = self._course(passes=passes, fresh=fresh, raises=raises, clips=clips, explicit=explicit)
        if course is not None:
            (track,) = tracks
            lane = self.lane = self._loop.shorthand = ScalerLane(
                self, self._loop, track, self._scale, self._tracker, course, self._finite
            )
            self._lane_of = id(scaler)
            LANES[self._lane_of] = lane

    def take_over(self) -> None:
        LANES.pop(self._lane_of, None)
        lane = self.lane
        super().take_over()
        if lane is None:
            return
        self._calls += lane.updates
        self._tracker.value = lane.count
        self._losses = int(lane.scaled)
        if lane.untold is not None:
            self.untold = (lane.optimizer, *lane.untold, len(self._moments) - 1)
        if lane.stepped:
            self.stepped[id(lane.optimizer)] = True
        if lane.stepping:
            self._in_full.goes_on_stepping(lane.optimizer)

    def leave(self, *, odd: bool = True) -> bool:
        if self.lane is not None:
            self.lane.leave()
        # Who steps by now has been told to: what was noted of it is true.
        alone, self.sure, self.untold = self.alone, False, None
        super().leave(odd=odd)
        if alone:
            self._in_full.caught_up()
        return False

    def _may_be_clipped(self, numbers: Sequence[int]) -> bool:
        return all(track.found is not None for track in self.tracks.values() if track.number in numbers)

    def _facts_noted(self) -> UpdateFacts:
        windows = {}
        for track in self.tracks.values():
            windows[self._name(track.number)] = window = track.window(self._scale.value)
            window.unscale = "explicit" if track.explicit else "implicit"
            window.unscaled_by, window.found = self._scale.value, _FINITE
        verdicts = [OptimizerVerdict(name, _FINITE) for name in windows]
        return self._clip_windows(UpdateFacts(windows, verdicts, partial=False), self._scale.value)

    def _tell(self, moment: Moment) -> None:
        match moment:
            case ("scaled", scale):
                self._loop.windows.scaled(scale)
            case ("found", optimizer, inverse, found, scale, asked):
                self._in_full.found(optimizer, inverse, found, scale, asked=asked)
                # Of a step that is still under way it is said at the end.
                self._loop.windows.stepping = False
            case ("asked", number):
                self._loop.windows.asked(number)
                self._loop.windows.stepping = False
            case _:
                super()._tell(moment)

    def _is_known(self) -> bool:
        self._among_ranks = is_among_ranks()
        known = all(track.bump is not None for track in self.tracks.values())
        self.sure = known and not self._among_ranks
        return known

    def _check(self, track: Track, optimizer: torch.optim.Optimizer, found: Found, *, asked: bool) -> bool:
        """Read the verdict, and note it where all is finite."""
        for tensor in found.values():
            if len(found) > 1 or not tensor.is_cpu or tensor.item():
                break
            return self._take(track, optimizer, found if self._among_ranks else self._finite, asked=asked)
        return self.leave(odd=False)

    def _take(self, track: Track, optimizer: torch.optim.Optimizer, found: Found, *, asked: bool) -> bool:
        track.found, track.asked, track.explicit = found, asked, not asked
        self._moments.append(("found", optimizer, None, found, self._scale.value, asked))
        return self.alone

    def _start(self) -> bool:
        """The first loss of an update was scaled: what is gone by now begins at zero, though it be where it was.

        Whether no backward pass came before it, of a loss that was not scaled.
        """
        if not all(track.is_through() for track in self.tracks.values()):
            return False
        for track in self.tracks.values():
            gradient = track.parameter.grad
            if gradient is None:
                track.at = None
            elif track.at is None and track.is_through():
                # It is left where none used to be.
                track.left = track.at = stamp_of(gradient)
        return True
