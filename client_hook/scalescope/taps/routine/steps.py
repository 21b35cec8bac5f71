"""Routine updates of a loop without a scaler: one optimizer, one backward pass, one step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scalescope.taps.routine.notes import Notes
from scalescope.taps.routine.step_lane import StepLane
from scalescope.taps.windows.windows import UpdateFacts


class StepNotes(Notes):
    """Notes them at both ends of the step."""

    lane: StepLane | None
    # Of several it is not the step of one that closes an update.
    _most_optimizers = 1

    def stepping(self, optimizer: torch.optim.Optimizer, *, closure: bool) -> bool:
        """Before a step, in which a ``closure`` may run the backward."""
        if not self.noting:
            return False
        track = self.tracks[id(optimizer)]
        if closure or not self._find() or not track.passes or track.asked:
            return self.leave()
        track.asked = True
        return self.alone

    def stepped(self, optimizer: torch.optim.Optimizer) -> bool:
        """After it: the update is over."""
        if not self.noting:
            return False
        track = self.tracks[id(optimizer)]
        if not (track.asked and track.is_through()):
            return self.leave()
        if not self.alone:
            # A rehearsal: the rest is heard in full.
            return False
        self._loop.backward_ran = True
        self._close([self._raises, *self._clips, track.passes, track.fresh], None, None)
        self._enter()
        return True

    def _enter(self) -> None:
        """After an update: if it was ordinary, the next ones go in a lane."""
        raises, *clips, passes, fresh = self._alike
        course = self._course(passes=passes, fresh=fresh, raises=raises, clips=clips, explicit=True)
        if course is not None:
            (track,) = self.tracks.values()
            self.lane = self._loop.shorthand = StepLane(self, self._loop, track, course)

    def _may_be_clipped(self, numbers: Sequence[int]) -> bool:
        regular = self._find()
        return regular and all(track.passes for track in self.tracks.values() if track.number in numbers)

    def _facts_noted(self) -> UpdateFacts:
        windows = {self._name(track.number): track.window() for track in self.tracks.values()}
        return self._clip_windows(UpdateFacts(windows, (), partial=False), None)
