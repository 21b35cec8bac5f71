"""The routine update: one that goes as those before it went, noted down in a few lines.

Nearly every update of a training is like the last one: losses are multiplied by a scale at rest, the gradients of each
optimizer are unscaled once and found finite, perhaps clipped, and stepped with. What is new of such an update is a few
numbers. So while an update goes that way its moments are only noted. Where something is not as it was, they are told
in their order to the taps that hear updates in full, and the update goes on there as if it had from its beginning.

A training gets there by a rehearsal: some updates in a row that were heard in full and noted down as well, to the same
facts. After one that went otherwise they are heard in full for a while.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from torch.amp import GradScaler

from scalescope.readback import Value
from scalescope.taps.backward.ends import Ends
from scalescope.taps.facts import is_among_ranks
from scalescope.taps.loop import Loop
from scalescope.taps.scaler.scale import Reader
from scalescope.taps.scaler.track import Track
from scalescope.taps.windows.clip import ClipCall
from scalescope.taps.windows.windows import UpdateFacts
from scalescope.updates import OptimizerVerdict, Update

# So many updates in a row are noted down and heard in full; and so many are heard in full after an odd one.
_REHEARSALS = 3
_REST = 64
# A loop whose updates never close notes no more than this.
_MOST = 256
# Each of them is looked at whenever one is unscaled.
_MOST_OPTIMIZERS = 8
_FINITE: Sequence[Value] = (0.0,)

# Its name, and what those who hear in full are told of it: see :meth:`Routine._tell`.
Moment = tuple[Any, ...]

# What a scaler found for one optimizer: a tensor for each device, above 0 for "skip".
Found = Mapping[torch.device, torch.Tensor]


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


class Routine:
    """Notes the updates of one scaler. Each moment answers whether that is all there is to it."""

    def __init__(self, loop: Loop, scale: Reader, tracker: Reader, in_full: InFull) -> None:
        # Whether the update under way is noted down; and whether that is all that is done.
        self.noting = self.alone = False
        # Whether all verdicts are known before an update: among ranks they may become one in the end.
        self.sure = False
        # By the optimizer's id; and who stepped since the last update, and whether by the scaler.
        self.tracks: dict[int, Track] = {}
        self.stepped: dict[int, bool] = {}
        # The scale before an update that changed it, which is no routine any more.
        self.outgrown: Value | None = None
        self._loop = loop
        self._scale = scale
        self._tracker = tracker
        self._in_full = in_full
        self._rehearsed = 0
        self._resting_until = 0
        self._among_ranks = False
        # Whether a scaler's step says by itself what it found; and of a step that was begun and not heard yet: of whom
        # it is, the inverse of the scale, what was found, and which moment that was.
        self.trusting = False
        self.untold: tuple[torch.optim.Optimizer, torch.Tensor | None, Found, int] | None = None
        # In the place of what was found where that is finite: what torch has made for it is torch's to let go of.
        self._finite: Found = {torch.device("cpu"): torch.zeros(1)}
        # What to tell of each moment; scaled losses among them, and those of earlier updates.
        self._moments: list[Moment] = []
        self._losses = self._calls = 0
        # By whose gradients, what and the limit.
        self._clips: list[tuple[tuple[int, ...], Literal["norm", "value"], float | None]] = []
        self._raises = False
        # What was alike in the last one, and what was told of it.
        self._alike: list[object] = []
        self._facts: UpdateFacts | None = None
        # Whether it is known what such an update leaves of the gradients.
        self._settled = False
        # The last update that closed, and where the counters were by then. The link's thread reads it.
        self._closed = (-1, 0)

    def scaled(self, scaler: GradScaler) -> bool:
        """A loss was scaled."""
        if not self.noting:
            return False
        loop = self._loop
        if loop.edge.silent:
            return self.alone
        regular = self._find() and len(self._moments) < _MOST if self._losses else self._start()
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

    def took(
        self, optimizer: torch.optim.Optimizer, inverse: torch.Tensor | None, found: Found, *, asked: bool
    ) -> bool:
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
            return self._take(track, optimizer, self._finite, asked=asked)
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

    def clipped(self, gradients: Sequence[torch.Tensor], call: ClipCall) -> bool:
        """Gradients of whomever are about to be clipped, or looked at for their norm."""
        numbers = self._loop.owners(gradients)
        if not numbers:
            return self.alone
        if call.kind is not None:
            for track in self.tracks.values():
                if track.found is None and track.number in numbers:
                    return self.leave()
            if not self._loop.limited(call):
                return self.leave()
            self._clips.append((tuple(numbers), call.kind, call.limit))
        self._raises = self._raises or call.raises
        self._moments.append(("clipping", gradients, call))
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
        alike: list[object] = [self._scale.value, self._raises, *self._clips]
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
        self._close(alike, tracker)
        return True

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
        return sum([track.counted() for track in self.tracks.values()]) < self._closed[1]

    def overtaken(self) -> int:
        """The last update that nothing is added to any more. From any thread."""
        closed = self._closed
        return closed[0] if self.alone and self.began() else closed[0] - 1

    def leave(self, *, odd: bool = True) -> bool:
        """The update under way is none, or none any more: tell what was noted to those who hear it in full."""
        if not self.noting:
            return False
        if odd:
            self._rehearsed, self._resting_until = 0, self._loop.step + _REST
        self.noting, self._loop.shorthand = False, None
        if self.alone:
            self._find()
        moments, self._moments = self._moments, []
        if self.alone:
            self.alone = self.sure = False
            self._loop.resume({track.number: track.left for track in self.tracks.values()}, self._calls)
            for moment in moments:
                self._loop.edge.guard(self._tell, moment)
            self._in_full.caught_up()
        return False

    def _tell(self, moment: Moment) -> None:
        """Tell those who hear in full of what was noted."""
        match moment:
            case ("scaled", scale):
                self._loop.windows.scaled(scale)
            case ("find", number, stamp, graph, added):
                self._loop.find(number, stamp, graph=graph, added=added)
            case ("found", optimizer, inverse, found, scale, asked):
                self._in_full.found(optimizer, inverse, found, scale, asked=asked)
            case ("asked", number):
                self._loop.windows.asked(number)
            case ("clipping", gradients, call):
                self._loop.clipping(gradients, call)

    def _check(self, track: Track, optimizer: torch.optim.Optimizer, found: Found, *, asked: bool) -> bool:
        """Read the verdict, and note it where all is finite."""
        for tensor in found.values():
            if len(found) > 1 or not tensor.is_cpu or tensor.item():
                break
            # Among ranks it may become another yet.
            return self._take(track, optimizer, found if self._among_ranks else self._finite, asked=asked)
        return self.leave(odd=False)

    def _take(self, track: Track, optimizer: torch.optim.Optimizer, found: Found, *, asked: bool) -> bool:
        track.found, track.asked, track.explicit = found, asked, not asked
        self._moments.append(("found", optimizer, None, found, self._scale.value, asked))
        return self.alone

    def _begin(self) -> None:
        ends = self._loop.ends()
        if ends is None or len(ends) > _MOST_OPTIMIZERS:
            return
        before = self.tracks if self._rehearsed else {}
        tracks = [self._track(number, each, before) for number, each in ends.items()]
        self.tracks = {self._key(track.number): track for track in tracks}
        self._among_ranks = is_among_ranks()
        self._calls = self._loop.windows.calls
        self._settled = False
        self.noting = True
        self._note(self._loop.step - 1)
        if self._rehearsed >= _REHEARSALS and all(track.bump is not None for track in tracks):
            self._loop.rest(self.began)
            self.alone, self.sure = True, not self._among_ranks

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
        self._closed = (closed, count)

    def _start(self) -> bool:
        """The first loss of an update was scaled: what is gone by now begins at zero, though it be where it was."""
        for track in self.tracks.values():
            if track.parameter.grad is None:
                track.at = None
        return True

    def _find(self, unscaled: Track | None = None) -> bool:
        """Note the passes since the last look; whether each optimizer had one at most, that did what one does.

        ``unscaled``: whose gradients the scaler has unscaled after them.
        """
        regular = True
        for track in self.tracks.values():
            plain, found = track.find((track.bump or 0) if track is unscaled else 0)
            if found is not None:
                self._moments.append(("find", track.number, *found))
                regular = regular and plain
        return regular

    def _close(self, alike: list[object], tracker: Value | None) -> None:
        if self._facts is None or alike != self._alike:
            self._alike, self._facts, self._settled = alike, self._told(), False
        self._calls += self._losses
        loop = self._loop
        closed = loop.close_routine(self._facts, self._scale.value, tracker)
        settled = [track.renew(known=self._settled) for track in self.tracks.values()]
        self._settled = self._settled or all(settled)
        self._note(closed)
        if not loop.sampling.quiet:
            self.leave(odd=False)

    def _rehearse(self, update: Update) -> None:
        """``update`` was heard in full as well: to the same facts?"""
        same = update.facts is not None and self._told().told() == update.facts.told()
        self._rehearsed = self._rehearsed + 1 if same else 0
        if not same:
            self._resting_until = self._loop.step + _REST

    def _told(self) -> UpdateFacts:
        """The facts of the update as it was noted down."""
        windows = {track.number: track.window(self._scale.value, _FINITE) for track in self.tracks.values()}
        for numbers, kind, limit in self._clips:
            for number in numbers:
                windows[number].clip(ClipCall(kind, limit), None, self._scale.value)
        names = {number: self._loop.name(self._loop.optimizers[number]) for number in windows}
        verdicts = [OptimizerVerdict(name, _FINITE) for name in names.values()]
        facts = UpdateFacts({names[number]: window for number, window in windows.items()}, verdicts, partial=False)
        facts.raises = self._raises
        return facts
