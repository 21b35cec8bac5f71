"""What the rooms above ask of the store: short read transactions, each one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from scalescope.wire import SampleKind
from sqlalchemy import Connection, Engine, Row, bindparam, select
from sqlalchemy.exc import SQLAlchemyError

from scalescope_server.store import buckets, curves, facts, history, tables
from scalescope_server.store.errors import NotFound
from scalescope_server.store.outages import outage
from scalescope_server.store.records import (
    EventRow,
    FactsRow,
    FindingRow,
    ParameterRow,
    Position,
    RunDetail,
    RunId,
    RunState,
    RunSummary,
    SampleBucket,
    Series,
    StepRow,
)
from scalescope_server.store.run_detail import read_parameters, read_run
from scalescope_server.store.runs import Filter, count_states, list_runs, summaries


class Reader:
    """Synchronous and thread-safe; meant for a pool of threads, never for the event loop.

    Every method may raise :class:`Unavailable`, and where it names a run :class:`NotFound`. A range of steps is
    [start, stop); None is the run's own beginning or end.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], float], silent_after_s: float) -> None:
        self._engine = engine
        self._clock = clock
        self._silent_after_s = silent_after_s

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
        with self._reading() as connection:
            chosen = Filter(project, state, text)
            silent_before = self._silent_before()
            return list_runs(connection, chosen, limit=limit, cursor=cursor, silent_before=silent_before)

    def states(self) -> dict[RunState, int]:
        """How many runs are in each state that any is in."""
        with self._reading() as connection:
            return count_states(connection, self._silent_before())

    def run(self, run: str) -> RunDetail:
        with self._reading() as connection:
            return read_run(connection, _found(connection, run), self._silent_before())

    def latest(self, run: str) -> RunSummary:
        """The run's line in the list, as it stands now."""
        with self._reading() as connection:
            return summaries(connection, [_found(connection, run)], self._silent_before())[0]

    def series(
        self,
        run: str,
        names: Sequence[str],
        *,
        start: int | None = None,
        stop: int | None = None,
        points: int = curves.MAX_POINTS,
        rank: int = 0,
    ) -> tuple[int, dict[str, Series]]:
        """(steps in a bucket, name -> series), at most ``points`` buckets; bucket 1 is exact."""
        with self._reading() as connection:
            found = _found(connection, run)
            first, end = _range(found, start, stop)
            return curves.read_series(connection, found.key, names, first, end, points, rank)

    def series_names(self, run: str) -> list[str]:
        with self._reading() as connection:
            return curves.series_names(connection, _found(connection, run).key)

    def events(
        self,
        run: str,
        *,
        kind: str | None = None,
        start: int | None = None,
        stop: int | None = None,
        cursor: str | None = None,
        limit: int = 500,
    ) -> tuple[list[EventRow], str | None]:
        """Every event, exact, and the cursor of the next ones. :class:`BadCursor`."""
        with self._reading() as connection:
            key = _found(connection, run).key
            return history.read_events(connection, key, kind=kind, start=start, stop=stop, cursor=cursor, limit=limit)

    def facts(
        self,
        run: str,
        *,
        start: int | None = None,
        stop: int | None = None,
        cursor: str | None = None,
        limit: int = 500,
        rank: int = 0,
    ) -> tuple[list[FactsRow], dict[str, object], str | None]:
        """What held of the windows, the set-up in force at the end, the cursor of the next. :class:`BadCursor`."""
        with self._reading() as connection:
            told = facts.Told(_found(connection, run).key, rank, start, stop)
            rows, after = facts.read_facts(connection, told, cursor=cursor, limit=limit)
            return rows, facts.read_setup(connection, told), after

    def samples(
        self,
        run: str,
        *,
        kind: SampleKind = "grad",
        start: int | None = None,
        stop: int | None = None,
        points: int = buckets.MAX_BUCKETS,
        rank: int = 0,
        parameters: Sequence[int] | None = None,
    ) -> tuple[int, list[SampleBucket]]:
        """(steps in a bucket, rows), at most ``points`` buckets; see :func:`buckets.read_samples`."""
        with self._reading() as connection:
            found = _found(connection, run)
            view = buckets.View(found.key, kind, rank, *_range(found, start, stop))
            return buckets.read_samples(connection, view, points, parameters)

    def layers(
        self,
        run: str,
        *,
        name: str | None = None,
        kind: SampleKind = "grad",
        start: int | None = None,
        stop: int | None = None,
        points: int = buckets.MAX_BUCKETS,
        rank: int = 0,
    ) -> tuple[list[ParameterRow], int, list[SampleBucket]]:
        """The parameters (all, or the one called ``name``, or none) and their :meth:`samples`, of one snapshot."""
        with self._reading() as connection:
            found = _found(connection, run)
            chosen = [p for p in read_parameters(connection, found.key) if name in (None, p.name)]
            view = buckets.View(found.key, kind, rank, *_range(found, start, stop))
            return chosen, *buckets.read_samples(connection, view, points, [p.index for p in chosen])

    def findings(self, run: str) -> list[FindingRow]:
        """Worst first, then newest first; closed ones too."""
        with self._reading() as connection:
            return history.read_findings(connection, _found(connection, run).key)

    def steps_after(self, run: str, after: Position, limit: int) -> tuple[list[StepRow], int]:
        """At most ``limit`` updates of rank 0 beyond ``after``, in order, and how many the run has in all."""
        with self._reading() as connection:
            found = _found(connection, run)
            return history.steps_after(connection, found.key, after, limit), int(found.attempted)

    def scaler(self, run: str) -> dict[str, object] | None:
        """The scaler's settings as the trainer told them last; None without one."""
        with self._reading() as connection:
            scaler: dict[str, object] | None = _found(connection, run).scaler
            return scaler

    def judgement(self, run: str) -> tuple[int, bytes]:
        """(how many updates are judged, state) as the judge committed last; 0 and empty before its first pass."""
        with self._reading() as connection:
            return history.read_judgement(connection, _found(connection, run).key)

    def unjudged(self) -> list[RunId]:
        """Runs of which more or other updates are stored than are judged."""
        with self._reading() as connection:
            return history.unjudged(connection)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            if told := outage(error):
                raise told from error
            raise

    def _silent_before(self) -> float:
        return self._clock() - self._silent_after_s


def _found(connection: Connection, run: str) -> Row[Any]:
    found = connection.execute(_RUN, {"run_id": run}).one_or_none()
    if found is None:
        raise NotFound(run)
    return found


def _range(run: Row[Any], start: int | None, stop: int | None) -> tuple[int, int]:
    """The steps asked for, within those the run has."""
    first = max(start or 0, 0)
    end = run.length if stop is None else min(stop, run.length)
    return first, max(end, first)


_RUN = select(tables.run).where(tables.run.c.id == bindparam("run_id"))
