"""The rules of all runs that this server judges: the book as it is now, and a lookout for each run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, Protocol

from scalescope_server.rules.alert import Alert, State
from scalescope_server.rules.dependence import Lookback
from scalescope_server.store.judging import Position
from scalescope_server.store.reader import Reader
from scalescope_server.store.records import RunId
from scalescope_server.store.vigil import Vigil
from scalescope_server.watching.book import Book, opened
from scalescope_server.watching.clock import Clock, Shift
from scalescope_server.watching.lookout import SCALE, Lookout, Surroundings, recalled
from scalescope_server.watching.post import Post, grouped
from scalescope_server.watching.stretches import Open, all_stretches, read_stretches

# What is kept of lookouts, in layers of which they hold windows: one of 148 layers under the built-in rules takes
# 10 MiB where every tenth update is sampled, so all of them some 1.3 GiB. One without layers counts as so many.
MOST_LAYERS = 20_000
LEAST_LAYERS = 16
# A run that has not been judged for so long makes room for others. Among those that are at work the one that is one too
# many is made again each time: were the longest unused to go, every one of them would be.
IDLE_S = 60.0
# Each change of a rule makes a group of its own; from so many on they are put together again.
MOST_POSTS = 24


class Standing(Protocol):
    """How far a run is judged."""

    def start(self) -> Position:
        """Where rules begin that have never been evaluated on it."""
        ...

    @property
    def shifts(self) -> Sequence[Shift]:
        """How the trainer's clock was set otherwise at updates that are judged."""
        ...

    def past(self) -> Open:
        """Which findings were open at updates that are judged."""
        ...


class _Kept(NamedTuple):
    """``at``: when it was given back."""

    lookout: Lookout
    at: float


class Keeper:
    """Of one thread. ``now``: seconds since the epoch."""

    def __init__(self, reader: Reader, now: Callable[[], float]) -> None:
        self.book = Book()
        self._reader = reader
        self.now = now
        # Those that were judged last stand last.
        self._kept: dict[RunId, _Kept] = {}

    def renew(self, revision: int) -> None:
        """See to it that the book is that of ``revision``, or a later one."""
        if self.book.revision < revision:
            self.book = opened(self._reader.rule_book(), self.book)

    def take(self, vigil: Vigil, standing: Standing, fence: int | None, *, timed: bool = False) -> Lookout | None:
        """That of a run, with what has changed of its rules; made anew where others may have judged meanwhile.

        None where no rule watches it. Who has it gives it back once what it says is committed; else it is made again.
        ``timed``: for rules that ask for time that passes, the others may be missing.
        """
        self.renew(vigil.revision)
        found = self._taken(vigil.run)
        if found is None or not found.is_at(vigil.position, fence) or found.posts > MOST_POSTS:
            position = standing.start() if vigil.position is None else vigil.position
            found = Lookout(vigil, fence, position, self._surroundings, Clock(standing.shifts))
        elif found.is_of(vigil) and (found.is_whole or timed):
            found.vigil = vigil
            return found if found.speaks else None
        self._man(found, vigil, standing, timed)
        return found if found.speaks else None

    def give_back(self, lookout: Lookout) -> None:
        """Keep it for the next pass, where there is room."""
        run, now = lookout.vigil.run, self.now()
        self._kept[run] = _Kept(lookout, now)
        while self._layers() > MOST_LAYERS and len(self._kept) > 1:
            longest = next(iter(self._kept))
            del self._kept[longest if now - self._kept[longest].at > IDLE_S or run not in self._kept else run]

    def _taken(self, run: RunId) -> Lookout | None:
        kept = self._kept.pop(run, None)
        return None if kept is None else kept.lookout

    def _layers(self) -> int:
        return sum(max(kept.lookout.layers, LEAST_LAYERS) for kept in self._kept.values())

    def stands_at(self, run: RunId, position: Position | None, fence: int | None) -> Lookout | None:
        """The lookout of a run, if there is one that knows all that is judged; who has it gives it back."""
        kept = self._kept.get(run)
        if kept is None or not kept.lookout.is_at(position, fence):
            return None
        return self._taken(run) if kept.lookout.vigil.revision == self.book.revision else None

    def waiting(self) -> set[RunId]:
        """Runs on which something fires that has yet to be told of."""
        return {run for run, kept in self._kept.items() if kept.lookout.is_waiting}

    def _man(self, lookout: Lookout, vigil: Vigil, standing: Standing, timed: bool) -> None:
        """Bring its rules up to ``vigil``. Those that have not changed keep what they know."""
        watching = {entry.row.id: entry for entry in self.book.watching(vigil)}
        lookout.leave({entry.row.id for entry in lookout.entries if watching.get(entry.row.id) != entry})
        lookout.vigil, lookout.is_whole = vigil, not timed
        kept = {each.rule: recalled(each) for each in self._reader.kept_alerts(vigil.run)}
        here = {entry.row.id for entry in lookout.entries}
        wanted = [entry for entry in watching.values() if entry.compiled.needs.pulses or not timed]
        for group in grouped(entry for entry in wanted if entry.row.id not in here):
            post = Post(group, [kept.get(entry.row.id, Alert()) for entry in group])
            self._replay(post, lookout, standing)
            lookout.man(post)
        for entry in self.book.entries:
            alert = kept.get(entry.row.id, Alert())
            if entry.row.id not in watching and alert.state is not State.QUIET:
                lookout.part(entry, alert, self.now())
        if lookout.at is None:
            before = self._back(vigil.run, lookout.position, {Lookback(updates=1, times=1)})
            for last in read_stretches(self._reader, vigil.run, SCALE, before, lookout.position):
                lookout.note(lookout.clock.past(last))

    def _replay(self, post: Post, lookout: Lookout, standing: Standing) -> None:
        """Let rules see again what they reach back to."""
        run, position = lookout.vigil.run, lookout.position
        begin = self._back(run, position, {entry.compiled.lookback for entry in post.entries})
        past = standing.past() if post.needs.findings else None
        for stretch in all_stretches(self._reader, run, post.needs, begin, position, past):
            post.replay(lookout.clock.past(stretch))

    def _back(self, run: RunId, position: Position, reaches: Collection[Lookback]) -> Position:
        """From where on updates are to be seen again; one at least."""
        return min(self._farther(run, position, reach) for reach in {Lookback(updates=1, times=1), *reaches})

    def _farther(self, run: RunId, position: Position, reach: Lookback) -> Position:
        for _ in range(reach.times):
            position = self._reader.look_back(run, position, reach.updates, reach.seconds, reach.most)
        return position

    def _surroundings(self, vigil: Vigil) -> Surroundings:
        now = self.now()
        ends = [
            silence.ends_at
            for silence in self._reader.silences(now)
            if silence.starts_at <= now and fnmatchcase(vigil.project, silence.project)
        ]
        kept = {each.rule: each for each in self._reader.kept_alerts(vigil.run)}
        channels = tuple(channel.name for channel in self._reader.channels() if channel.enabled)
        return Surroundings(now, kept, max(ends, default=None), channels)
