"""The routine update: one that goes as those before it went, noted down in a few lines.

Nearly every update of a training is like the last one. What is new of it is a few numbers. So while an update goes that
way its moments are only noted. Where something is not as it was, they are told in their order to the taps that hear
updates in full, and the update goes on there as if it had from its beginning.

A training gets there by a rehearsal: some updates in a row that were heard in full and noted down as well, to the same
facts. After one that went otherwise they are heard in full for a while.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from scalescope.readback import Value
from scalescope.taps.backward.ends import Ends
from scalescope.taps.loop import Loop
from scalescope.taps.routine.course import Clip, Course, Moment, course_of
from scalescope.taps.routine.lane import Lane
from scalescope.taps.routine.track import Track
from scalescope.taps.windows.clip import ClipCall
from scalescope.taps.windows.windows import UpdateFacts
from scalescope.updates import Update

# So many updates in a row are noted down and heard in full; and so many are heard in full after an odd one.
_REHEARSALS = 3
REST = 64
# A loop whose updates never close notes no more than this.
MOST = 256


class Notes(ABC):
    """Notes the updates of one loop. Each moment answers whether that is all there is to it.

    Those who know what else there is to an update of theirs say when it is over, by :meth:`_close`.
    """

    # Each optimizer is looked at whenever one is; a loop with more of them is heard in full.
    _most_optimizers = 8

    def __init__(self, loop: Loop) -> None:
        # Whether the update under way is noted down; and whether that is all that is done.
        self.noting = self.alone = False
        # By the optimizer's id.
        self.tracks: dict[int, Track] = {}
        self._loop = loop
        self._rehearsed = 0
        self._resting_until = 0
        # What to tell of each moment; scaled losses among them, and those of earlier updates.
        self._moments: list[Moment] = []
        self._losses = self._calls = 0
        self._clips: list[Clip] = []
        self._raises = False
        # What was alike in the last one, and what was told of it.
        self._alike: list[Any] = []
        self._facts: UpdateFacts | None = None
        # Whether it is known what such an update leaves of the gradients.
        self._settled = False
        # What ordinary updates go in; and the update before which there is none again.
        self.lane: Lane | None = None
        self._no_lane_until = 0
        # The last update that closed, and where the counters were by then. The link's thread reads it.
        self.closed = (-1, 0)

    def clipped(self, gradients: Sequence[torch.Tensor], call: ClipCall) -> bool:
        """Gradients of whomever are about to be clipped, or looked at for their norm."""
        numbers = self._loop.owners(gradients)
        if not numbers:
            return self.alone
        self._raises = self._raises or call.raises
        if call.kind is None:
            return self.alone
        if len(self._moments) >= MOST or not (self._may_be_clipped(numbers) and self._loop.limited(call)):
            return self.leave()
        self._clips.append((tuple(numbers), call.kind, call.limit))
        self._moments.append(("clipping", gradients, call))
        return self.alone

    def consider(self, update: Update) -> None:
        """``update`` was heard in full and has closed: see whether the next one is to be noted down."""
        loop = self._loop
        if self.noting:
            self._rehearse(update)
        self.noting = False
        # Some hold gradients.
        self._moments.clear()
        # What is not known yet may be a skip.
        clean = all(value == 0.0 for verdict in update.verdicts for value in verdict.found)
        plain = loop.sampling.quiet and not loop.sampling.trouble.awaited and loop.windows.at_rest()
        if clean and plain and loop.step >= self._resting_until:
            self._begin()
        loop.shorthand = self if self.noting else None

    def began(self) -> bool:
        """Whether a backward pass of the update under way has begun. From any thread."""
        return sum([track.counted() for track in self.tracks.values()]) < self.closed[1]

    def overtaken(self) -> int:
        """The last update that nothing is added to any more. From any thread."""
        closed = self.closed
        return closed[0] if self.alone and self.began() else closed[0] - 1

    def leave(self, *, odd: bool = True) -> bool:
        """The update under way is none, or none any more: tell what was noted to those who hear it in full."""
        if self.lane is not None:
            self.lane.leave()
        if not self.noting:
            return False
        if odd:
            self._rehearsed, self._resting_until = 0, self._loop.step + REST
        self.noting, self._loop.shorthand = False, None
        if self.alone:
            self._find()
        moments, self._moments = self._moments, []
        if self.alone:
            self.alone = False
            self._loop.resume({track.number: track.left for track in self.tracks.values()}, self._calls)
            self._loop.windows.raises = self._loop.windows.raises or self._raises
            for moment in moments:
                self._loop.edge.guard(self._tell, moment)
        return False

    def take_over(self) -> None:
        """The lane is left: enter what came of the update under way."""
        lane, self.lane = self.lane, None
        if lane is None:
            return
        self._loop.shorthand = self
        if not lane.updates:
            # It is not what it looked like.
            self._no_lane_until = self._loop.step + REST
        lane.hand_over()
        self._moments += lane.moments()
        if lane.clipping is not None and lane.course.clip is not None:
            self._clips.append(lane.course.clip)

    @abstractmethod
    def _may_be_clipped(self, numbers: Sequence[int]) -> bool:
        """Whether a clipping of these optimizers comes when it does in an update of the usual kind."""

    @abstractmethod
    def _facts_noted(self) -> UpdateFacts:
        """The facts of the update as it was noted down."""

    def _tell(self, moment: Moment) -> None:
        """Tell those who hear in full of what was noted."""
        match moment:
            case ("find", number, stamp, graph, added):
                self._loop.find(number, stamp, graph=graph, added=added)
            case ("clipping", gradients, call):
                self._loop.clipping(gradients, call)

    def _is_known(self) -> bool:
        """Whether the rehearsals showed all that noting alone needs to know."""
        return True

    def _begin(self) -> None:
        ends = self._loop.ends()
        if ends is None or len(ends) > self._most_optimizers:
            return
        before = self.tracks if self._rehearsed else {}
        tracks = [self._track(number, each, before) for number, each in ends.items()]
        self.tracks = {self._key(track.number): track for track in tracks}
        self._calls = self._loop.windows.calls
        self._settled = False
        self.noting = True
        self._note(self._loop.step - 1)
        if self._rehearsed >= _REHEARSALS and self._is_known():
            self._loop.rest(self.began)
            self.alone = True

    def _track(self, number: int, ends: Ends, before: Mapping[int, Track]) -> Track:
        return Track(number, ends, self._loop.optimizers[number], before.get(self._key(number)))

    def _key(self, number: int) -> int:
        return id(self._loop.optimizers[number])

    def _note(self, closed: int) -> None:
        """An update begins, after the one ``closed``."""
        count = 0
        for track in self.tracks.values():
            count += 2 * track.to_come
        self._moments.clear()
        self._clips.clear()
        self._raises, self._losses = False, 0
        self.closed = (closed, count)

    def _find(self, unscaled: Track | None = None) -> bool:
        """Note the passes since the last look; whether each optimizer had one at most, that did what one does.

        ``unscaled``: whose gradients the scaler has unscaled after them.
        """
        regular = True
        for track in self.tracks.values():
            plain, found = track.find((track.bump or 0) if track is unscaled else 0)
            for each in found:
                self._moments.append(("find", track.number, *each))
            regular = regular and plain
        return regular

    def _close(self, alike: list[Any], scale: Value | None, tracker: Value | None) -> None:
        """The update is over: it was ``alike`` others, had this ``scale``, and ``tracker`` before its end."""
        if self._facts is None or alike != self._alike:
            self._alike, self._facts, self._settled = alike, self._facts_noted(), False
        self._calls += self._losses
        loop = self._loop
        closed = loop.close_routine(self._facts, scale, tracker)
        settled = [track.renew(known=self._settled) for track in self.tracks.values()]
        self._settled = self._settled or all(settled)
        self._note(closed)
        if not loop.sampling.quiet:
            self.leave(odd=False)

    def _course(
        self, *, passes: int, fresh: bool, raises: bool, clips: Sequence[Clip], explicit: bool
    ) -> Course | None:
        """How the next updates go, where the last one was ordinary enough for a lane; else None."""
        loop = self._loop
        turned_away = loop.step < self._no_lane_until or loop.step + 1 >= loop.sampling.next_turn
        if (
            not (self.alone and self._settled and self._facts and fresh)
            or raises
            or loop.windows.parallel
            or turned_away
        ):
            return None
        return course_of(self.tracks.values(), self._facts, passes=passes, clips=clips, explicit=explicit)

    def _rehearse(self, update: Update) -> None:
        """``update`` was heard in full as well: to the same facts?"""
        same = update.facts is not None and self._facts_noted().told() == update.facts.told()
        self._rehearsed = self._rehearsed + 1 if same else 0
        if not same:
            self._resting_until = self._loop.step + REST

    def _clip_windows(self, facts: UpdateFacts, scale: Value | None) -> UpdateFacts:
        """``facts`` with the clippings that were noted, under ``scale``."""
        for numbers, kind, limit in self._clips:
            for number in numbers:
                facts.windows[self._name(number)].clip(ClipCall(kind, limit), None, scale)
        facts.raises = self._raises
        return facts

    def _name(self, number: int) -> str:
        return self._loop.name(self._loop.optimizers[number])
