"""The routine update: one that goes as those before it went, noted down in a few lines.

Nearly every update of a training is like the last one: losses are multiplied by a scale at rest, the gradients of each
optimizer are unscaled once and found finite, perhaps clipped, and stepped with. What is new of such an update is a few
numbers. So while an update goes that way its moments are only noted. Where something is not as it was, they are told
in their order to the taps that hear updates in full, and the update goes on there as if it had from its beginning.

A training gets there by a rehearsal: some updates in a row that were heard in full and noted down as well, to the same
facts. After one that went otherwise they are heard in full for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from torch.amp import GradScaler

from scalescope.readback import Value
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
        # What to tell of each moment, and with what; scaled losses among them, and those of earlier updates.
        self._moments: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._losses = self._calls = 0
        # By whose gradients, what and the limit.
        self._clips: list[tuple[tuple[int, ...], Literal["norm", "value"], float | None]] = []
        self._raises = False
        # What was alike in the last one, and what was told of it.
        self._alike: list[object] = []
        self._facts: UpdateFacts | None = None
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
        self._moments.append((loop.windows.scaled, (self._scale.value,)))
        return self.alone

    def unscaling(self, optimizer: torch.optim.Optimizer) -> bool:
        """Gradients are complete and still scaled."""
        track = self.tracks.get(id(optimizer))
        if track is None or track.found is not None or not self._find() or not (track.passes and self._losses):
            return self.leave()
        if self.alone:
            self._loop.backward_ran = True
            if track.number == 0:
                self._loop.note_rate()
        return self.alone

    def unscaled(
        self, optimizer: torch.optim.Optimizer, inverse: torch.Tensor | None, found: Found, *, asked: bool
    ) -> bool:
        """They were checked: in a step that the scaler was ``asked`` for, or before one."""
        if not self.noting:
            return False
        for tensor in found.values():
            if len(found) > 1 or not tensor.is_cpu or tensor.item():
                break
            track = self.tracks[id(optimizer)]
            track.found, track.asked, track.explicit = tensor, asked, not asked
            self._moments.append((self._in_full.found, (optimizer, inverse, found, self._scale.value, asked)))
            return self.alone
        return self.leave(odd=False)

    def stepping(self, optimizer: torch.optim.Optimizer) -> bool:
        """The scaler is asked for a step of what was unscaled before."""
        if not self.noting:
            return False
        track = self.tracks[id(optimizer)]
        if track.asked or not track.is_through():
            return self.leave()
        track.asked = True
        self._moments.append((self._loop.windows.asked, (track.number,)))
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
        self._moments.append((self._loop.clipping, (gradients, call)))
        return self.alone

    def agreed(self) -> bool:
        """Before ``update``, among ranks: whether all verdicts are still what they were."""
        if any(track.found is not None and track.found.item() for track in self.tracks.values()):
            self.leave(odd=False)
        return self.alone

    def updated(self, scaler: GradScaler, was_set: bool) -> bool:
        """After ``update``: the update is over."""
        if not self.noting:
            return False
        for key, track in self.tracks.items():
            if not (track.asked and self.stepped.get(key) and track.is_through()):
                return self.leave()
        if was_set:
            return self.leave(odd=False)
        if not self.alone:
            # A rehearsal: the rest is heard in full.
            return False
        scale, tracker = self._scale.value, self._tracker.value
        if not self._scale.reread(scaler):
            self.outgrown = scale
            return self.leave(odd=False)
        self.stepped.clear()
        self._tracker.reread(scaler)
        self._close(tracker)
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
        return sum(track.counted() for track in self.tracks.values()) < self._closed[1]

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
            for tell, told in moments:
                self._loop.edge.guard(tell, *told)
            self._in_full.caught_up()
        return False

    def _begin(self) -> None:
        ends = self._loop.ends()
        if ends is None or len(ends) > _MOST_OPTIMIZERS:
            return
        anew = {key: track.anew for key, track in self.tracks.items()} if self._rehearsed else {}
        tracks = [Track(number, each, anew.get(self._key(number))) for number, each in ends.items()]
        self.tracks = {self._key(track.number): track for track in tracks}
        self._among_ranks = is_among_ranks()
        self._calls = self._loop.windows.calls
        self.noting = True
        self._note(self._loop.step - 1)
        if self._rehearsed >= _REHEARSALS:
            self._loop.rest(self.began)
            self.alone, self.sure = True, not self._among_ranks

    def _key(self, number: int) -> int:
        return id(self._loop.optimizers[number])

    def _note(self, closed: int) -> None:
        """An update begins, after the one ``closed``."""
        count = 0
        for track in self.tracks.values():
            count += track.begin()
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

    def _find(self) -> bool:
        """Note the passes since the last look; whether each optimizer had one at most, that did what one does."""
        regular = True
        for track in self.tracks.values():
            plain, found = track.find()
            if found is not None:
                self._moments.append((self._loop.find, (track.number, *found)))
                regular = regular and plain
        return regular

    def _close(self, tracker: Value | None) -> None:
        alike: list[object] = [self._scale.value, self._raises, tuple(self._clips)]
        for track in self.tracks.values():
            alike += (track.passes, track.fresh, track.explicit)
        facts = self._facts
        if facts is None or alike != self._alike:
            self._alike, facts = alike, self._told()
            self._facts = facts
        self._calls += self._losses
        loop = self._loop
        closed = loop.close_routine(facts, self._scale.value, tracker)
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
