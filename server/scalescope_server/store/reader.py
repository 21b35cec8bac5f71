"""What the rooms above ask of the store: short read transactions, each one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from sqlalchemy import Engine

from scalescope_server.store import curves, events, history
from scalescope_server.store.alert_reader import AlertReader
from scalescope_server.store.extract.reading import Extract, begin_extract
from scalescope_server.store.extract.tables import EVERYTHING, Chosen
from scalescope_server.store.judging import Position, Setting, StepRow
from scalescope_server.store.marks import Mark, read_marks
from scalescope_server.store.measured_reader import MeasuredReader
from scalescope_server.store.outbox_doors import OutboxReader
from scalescope_server.store.outlooks import Outlook, read_outlooks
from scalescope_server.store.pruning_reader import PruningReader
from scalescope_server.store.records import EventRow, FindingRow, RunDetail, RunId, RunState, RunSummary, Series
from scalescope_server.store.run_detail import read_run
from scalescope_server.store.runs import Filter, count_states, list_runs, summaries
from scalescope_server.store.setting import read_setting
from scalescope_server.store.snapshots import found_run, steps_of


class Reader(AlertReader, MeasuredReader, PruningReader, OutboxReader):
    """Synchronous and thread-safe; meant for a pool of threads, never for the event loop.

    Every method may raise :class:`Unavailable`, and where it names a run :class:`NotFound`. A range of steps is
    [start, stop); None is the run's own beginning or end.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], float], silent_after_s: float) -> None:
        super().__init__(engine)
        self._clock = clock
        self.silent_after_s = silent_after_s

    def runs(
        self,
        *,
        project: str | None = None,
        state: RunState | None = None,
        text: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[list[RunSummary], str | None]:
        """Runs, newest first, and the cursor of the next ones. :class:`BadCursor`."""
        with self.reading() as connection:
            chosen = Filter(project, state, text)
            silent_before = self._silent_before()
            return list_runs(connection, chosen, limit=limit, cursor=cursor, silent_before=silent_before)

    def states(self) -> dict[RunState, int]:
        """How many runs are in each state that any is in."""
        with self.reading() as connection:
            return count_states(connection, self._silent_before())

    def run(self, run: str) -> RunDetail:
        with self.reading() as connection:
            return read_run(connection, found_run(connection, run), self._silent_before(), self._clock())

    def latest(self, run: str) -> RunSummary:
        """The run's line in the list, as it stands now."""
        with self.reading() as connection:
            return summaries(connection, [found_run(connection, run)], self._silent_before())[0]

    def extract(self, run: RunId, chosen: Chosen = EVERYTHING) -> Extract:
        """Everything that is stored of a run as it stands now, or what is ``chosen`` of it, table by table."""
        return begin_extract(self, run, chosen, self._silent_before(), self._clock())

    def series(
        self,
        run: str,
        names: Sequence[str],
        *,
        start: int | None = None,
        stop: int | None = None,
        points: int = curves.MAX_POINTS,
        rank: int | None = None,
    ) -> tuple[int, dict[str, Series]]:
        """(steps in a bucket, name -> series), at most ``points`` buckets; bucket 1 is exact.

        ``rank`` None: of rank 0, and what is read out of samples and tallies of all ranks merged.
        """
        with self.reading() as connection:
            found = found_run(connection, run)
            first, end = steps_of(found, start, stop)
            ranks = curves.ranks_of(found.world_size, rank)
            return curves.read_series(connection, found.key, names, first, end, points, ranks)

    def series_names(self, run: str) -> list[str]:
        with self.reading() as connection:
            return curves.series_names(connection, found_run(connection, run).key)

    def events(
        self,
        run: str,
        *,
        kind: str | None = None,
        start: int | None = None,
        stop: int | None = None,
        cursor: str | None = None,
        limit: int = 500,
        merged: bool = False,
    ) -> tuple[list[EventRow], str | None]:
        """Every event of every rank, exact, and the cursor of the next ones. :class:`BadCursor`.

        ``merged``: what several ranks tell of one update comes once, a skip with its culprit.
        """
        read = events.read_run_events if merged else events.read_events
        with self.reading() as connection:
            asked = events.Asked(kind, start, stop)
            return read(connection, found_run(connection, run).key, asked, cursor=cursor, limit=limit)

    def findings(self, run: str) -> list[FindingRow]:
        """Worst first, then what began first; closed ones too."""
        with self.reading() as connection:
            return history.read_findings(connection, found_run(connection, run).key)

    def steps_after(self, run: str, after: Position, limit: int) -> tuple[list[StepRow], int]:
        """At most ``limit`` updates of rank 0 beyond ``after``, in order, and how many the run has in all.

        Without those that wait until other ranks have told them (see :func:`history.steps_after`).
        """
        with self.reading() as connection:
            found = found_run(connection, run)
            rows, waiting = history.steps_after(connection, found.key, after, limit, self._silent_before())
            return rows, int(found.attempted) - waiting

    def scaler(self, run: str) -> dict[str, object] | None:
        """The scaler's settings as the trainer told them last; None without one."""
        with self.reading() as connection:
            scaler: dict[str, object] | None = found_run(connection, run).scaler
            return scaler

    def setting(self, run: str) -> Setting:
        """What holds of it beside its updates, as it was told last."""
        with self.reading() as connection:
            return read_setting(connection, found_run(connection, run))

    def judgement(self, run: str) -> tuple[int, bytes]:
        """(how many updates are judged, state) as the judge committed last; 0 and empty before its first pass."""
        with self.reading() as connection:
            return history.read_judgement(connection, found_run(connection, run).key)

    def unjudged(self) -> list[RunId]:
        """Runs of which more or other updates are stored than are judged."""
        with self.reading() as connection:
            return history.unjudged(connection)

    def marks(self, runs: Collection[RunId]) -> dict[RunId, Mark]:
        """How far each of ``runs`` that is there has come, and the newest ones beside them."""
        with self.reading() as connection:
            return read_marks(connection, runs)

    def outlooks(self, runs: Collection[RunId], holder: str) -> dict[RunId, Outlook]:
        """What a server ``holder`` that would judge some of ``runs`` finds, of those that are there."""
        with self.reading() as connection:
            return read_outlooks(connection, runs, holder)

    def _silent_before(self) -> float:
        return self._clock() - self.silent_after_s
