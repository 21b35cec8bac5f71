"""What the rooms above ask of the store about measurements: samples, tallies, probes, and the facts beside them."""

from __future__ import annotations

from collections.abc import Sequence

from scalescope.wire import SampleKind
from sqlalchemy import Connection, func, select

from scalescope_server.store import tables
from scalescope_server.store.buckets import read_samples
from scalescope_server.store.facts import Told, read_facts, read_last_facts, read_setup
from scalescope_server.store.layouts import subject_of
from scalescope_server.store.records import (
    FactsRow,
    Listed,
    ProbeRow,
    SampleBucket,
    TallyBucket,
    TallyKind,
)
from scalescope_server.store.run_detail import read_modules, read_parameters
from scalescope_server.store.snapshots import Snapshots, found_run, steps_of
from scalescope_server.store.tally_buckets import read_probes, read_tallies
from scalescope_server.store.views import MAX_BUCKETS, View, view_of


class MeasuredReader(Snapshots):
    """Part of :class:`~scalescope_server.store.reader.Reader`, whose words hold here too."""

    def samples(
        self,
        run: str,
        *,
        kind: SampleKind = "grad",
        start: int | None = None,
        stop: int | None = None,
        points: int = MAX_BUCKETS,
        rank: int | None = None,
        parameters: Sequence[int] | None = None,
    ) -> tuple[int, list[SampleBucket]]:
        """(steps in a bucket, buckets), at most ``points`` of them, of the parameters or modules at these positions.

        None: of all; ``rank`` None: of all ranks merged. See :func:`read_samples`.
        """
        with self.reading() as connection:
            found = found_run(connection, run)
            view = view_of(found, kind, rank, *steps_of(found, start, stop))
            chosen = range(_count_rows(connection, found.key, kind)) if parameters is None else parameters
            return read_samples(connection, view, points, chosen)

    def tallies(
        self,
        run: str,
        kind: TallyKind,
        names: Sequence[str],
        rows: Sequence[int],
        *,
        start: int | None = None,
        stop: int | None = None,
        points: int = MAX_BUCKETS,
        rank: int | None = None,
    ) -> tuple[int, list[TallyBucket]]:
        """(steps in a bucket, buckets): the columns called ``names`` of the parameters or modules at ``rows``.

        ``rank`` None: of all ranks merged.
        """
        with self.reading() as connection:
            found = found_run(connection, run)
            view = view_of(found, kind, rank, *steps_of(found, start, stop))
            return read_tallies(connection, view, points, rows, names)

    def listed(self, run: str, *, stop: int | None = None, rank: int = 0) -> Listed:
        """The run's parameters and modules, and its set-up in force at the end of the steps."""
        with self.reading() as connection:
            key = found_run(connection, run).key
            return Listed(
                parameters=read_parameters(connection, key),
                modules=read_modules(connection, key),
                setup=read_setup(connection, Told(key, rank, None, stop)),
            )

    def setup(self, run: str, *, stop: int | None = None, rank: int = 0) -> dict[str, object]:
        """The set-up in force at the end of the steps."""
        with self.reading() as connection:
            return read_setup(connection, Told(found_run(connection, run).key, rank, None, stop))

    def probes(
        self,
        run: str,
        *,
        start: int | None = None,
        stop: int | None = None,
        cursor: str | None = None,
        limit: int = 10,
        rank: int = 0,
    ) -> tuple[list[str], list[ProbeRow], str | None]:
        """Names of the run's parameters, probes in order, and the cursor of the next. :class:`BadCursor`."""
        with self.reading() as connection:
            found = found_run(connection, run)
            view = View(found.key, "probe", rank, *steps_of(found, start, stop))
            rows, after = read_probes(connection, view, cursor=cursor, limit=limit)
            return [p.name for p in read_parameters(connection, found.key)], rows, after

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
        with self.reading() as connection:
            told = Told(found_run(connection, run).key, rank, start, stop)
            rows, after = read_facts(connection, told, cursor=cursor, limit=limit)
            return rows, read_setup(connection, told), after

    def last_facts(self, run: str, most: int) -> tuple[int | None, list[FactsRow], dict[str, object]]:
        """(since, windows, the set-up in force at the end) of rank 0: all windows, since None, or where these are more
        than ``most`` those of the last ``most`` updates, since the first of these.
        """
        with self.reading() as connection:
            found = found_run(connection, run)
            told = Told(found.key, 0, None, None)
            since, rows = read_last_facts(connection, told, found.last_step + 1, most)
            return since, rows, read_setup(connection, told)


def _count_rows(connection: Connection, run: int, kind: SampleKind) -> int:
    listed = tables.module if subject_of(kind) == "module" else tables.parameter
    return int(connection.execute(select(func.count()).select_from(listed).where(listed.c.run == run)).scalar_one())
