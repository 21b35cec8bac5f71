"""The rules of all runs that this server judges: the book as it is now, and a lookout for each run."""

from __future__ import annotations

from collections.abc import Callable, Collection
from fnmatch import fnmatchcase

from scalescope_server.rules.dependence import Lookback
from scalescope_server.store.judging import Position
from scalescope_server.store.reader import Reader
from scalescope_server.store.records import RunId
from scalescope_server.store.vigil import Vigil
from scalescope_server.watching.book import Book, opened
from scalescope_server.watching.lookout import Lookout, Surroundings
from scalescope_server.watching.openings import past_openings
from scalescope_server.watching.stretches import all_stretches

# Lookouts that are kept: the windows of the built-in rules over 148 layers hold 8 MiB. Those of runs that have not been
# judged for longest go first, and are made again if need be.
MOST_KEPT = 128


class Keeper:
    """Of one thread. ``now``: seconds since the epoch."""

    def __init__(self, reader: Reader, now: Callable[[], float]) -> None:
        self.book = Book()
        self._reader = reader
        self._now = now
        self._lookouts: dict[RunId, Lookout] = {}

    def renew(self, revision: int) -> None:
        """See to it that the book is that of ``revision``, or a later one."""
        if self.book.revision < revision:
            self.book = opened(self._reader.rule_book(), self.book)

    def take(self, vigil: Vigil, start: Callable[[], Position]) -> Lookout | None:
        """That of a run, made anew where the one we had is not of its state; None where no rule watches it.

        Who has it gives it back once what it says is committed; else it is made again.
        ``start``: where the run stands for rules that have never been evaluated on it.
        """
        self.renew(vigil.revision)
        found = self._lookouts.pop(vigil.run, None)
        if found is None or not found.is_of(vigil):
            return self._made(vigil, start)
        found.vigil = vigil
        return found

    def give_back(self, lookout: Lookout) -> None:
        """Keep it for the next pass."""
        self._lookouts[lookout.vigil.run] = lookout
        while len(self._lookouts) > MOST_KEPT:
            del self._lookouts[next(iter(self._lookouts))]

    def stands_at(self, run: RunId, position: Position | None) -> Lookout | None:
        """The lookout of a run, if there is one that has seen all that is judged; who has it gives it back."""
        found = self._lookouts.get(run)
        if found is None or found.position != position or found.vigil.revision != self.book.revision:
            return None
        return self._lookouts.pop(run)

    def waiting(self) -> set[RunId]:
        """Runs on which something fires that has yet to be told of."""
        return {run for run, lookout in self._lookouts.items() if lookout.is_waiting}

    def _made(self, vigil: Vigil, start: Callable[[], Position]) -> Lookout | None:
        entries = self.book.watching(vigil)
        if not entries:
            return None
        position = start() if vigil.position is None else vigil.position
        lookout = Lookout(vigil, entries, self._reader.kept_alerts(vigil.run), position, self._surroundings(vigil))
        begin = self._back(vigil.run, position, {entry.compiled.lookback for entry in entries})
        past = past_openings(self._reader.findings(vigil.run)) if lookout.needs.findings else None
        for stretch in all_stretches(self._reader, vigil.run, lookout.needs, begin, position, past):
            lookout.replay(stretch)
        return lookout

    def _back(self, run: RunId, position: Position, reaches: Collection[Lookback]) -> Position:
        """From where on updates are to be seen again; one at least, since it says when it was."""
        return min(self._farther(run, position, reach) for reach in {Lookback(updates=1, times=1), *reaches})

    def _farther(self, run: RunId, position: Position, reach: Lookback) -> Position:
        for _ in range(reach.times):
            position = self._reader.look_back(run, position, reach.updates, reach.seconds)
        return position

    def _surroundings(self, vigil: Vigil) -> Callable[[], Surroundings]:
        def look() -> Surroundings:
            now = self._now()
            ends = [
                silence.ends_at
                for silence in self._reader.silences(now)
                if silence.starts_at <= now and fnmatchcase(vigil.project, silence.project)
            ]
            kept = {each.rule: each for each in self._reader.kept_alerts(vigil.run)}
            channels = tuple(channel.name for channel in self._reader.channels() if channel.enabled)
            return Surroundings(now, kept, max(ends, default=None), channels)

        return look
