"""One write transaction: the connection, and what is new in it and still to be folded into the levels.

Folding once for all batches of a transaction costs the same number of rows as for one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from sqlalchemy import Connection, bindparam, func, insert, select, update

from scalescope_server.store import rollup, tables
from scalescope_server.store.bulk import Columns, insert_rows
from scalescope_server.store.errors import BadRecord
from scalescope_server.store.folding import Heap, promote
from scalescope_server.store.holding import hold_free, hold_runs
from scalescope_server.store.levels import levels_for
from scalescope_server.store.refolding import refold
from scalescope_server.store.rollup import Points, in_order
from scalescope_server.store.sample_rollup import SAMPLES
from scalescope_server.store.sample_rollup import Pile as SamplePile
from scalescope_server.store.tally_rollup import TALLIES
from scalescope_server.store.tally_rollup import Pile as TallyPile
from scalescope_server.store.values import flags

# More names than a page could list; a loop that logs under a new name at each step ends here.
MAX_SERIES = 4096


@dataclass(slots=True)
class News:
    """What one run gained in the transaction."""

    points: list[Points] = field(default_factory=list)
    samples: Heap[SamplePile] = field(default_factory=lambda: Heap(SAMPLES))
    tallies: Heap[TallyPile] = field(default_factory=lambda: Heap(TALLIES))
    # Steps of which points were stored, or stored anew, and the keys of their series.
    revised: dict[int, set[int]] = field(default_factory=dict)


@dataclass(slots=True)
class Transaction:
    """A connection in a write transaction, and what :meth:`fold_all` has to add to the roll-ups before it ends."""

    connection: Connection
    _news: dict[int, News] = field(default_factory=dict)
    _series: dict[tuple[int, str], int] = field(default_factory=dict)
    _held: set[str] = field(default_factory=set)

    def hold(self, runs: Iterable[str], *, shortly: bool = False) -> None:
        """Let no other server write these runs before the transaction ends, those of them that there are.

        What is read of a run from then on is what its last writer committed. ``shortly``: as :func:`hold_runs` says.
        """
        self._held.update(hold_runs(self.connection, set(runs) - self._held, shortly=shortly))

    def hold_free(self, runs: Iterable[str]) -> Collection[str]:
        """Those of these runs that no other server writes, held as by :meth:`hold` without a wait for any."""
        free = hold_free(self.connection, set(runs))
        self._held.update(free)
        return free

    def news(self, run: int) -> News:
        return self._news.setdefault(run, News())

    def forget(self, run: int) -> None:
        """The run was deleted: nothing of it is left to fold."""
        self._news.pop(run, None)
        self._series = {k: key for k, key in self._series.items() if k[0] != run}

    def series(self, run: int, names: Sequence[str], *, sequence: int) -> dict[str, int]:
        """Name -> key of the run's series; new ones are entered. ``sequence``: of the record that has them.

        Raises:
            BadRecord: if the run would have more than ``MAX_SERIES``.
        """
        lacking = [name for name in names if (run, name) not in self._series]
        if lacking:
            found = self.connection.execute(_SERIES, {"of_run": run, "names": lacking})
            self._series.update({(run, row.name): row.key for row in found})
        for name in lacking:
            if (run, name) not in self._series:
                self._series[run, name] = self._enter_series(run, name, sequence)
        return {name: self._series[run, name] for name in names}

    def add_scalars(self, run: int, segment: int, points: Sequence[Points]) -> None:
        """Store exact values, each told once, and have them folded."""
        insert_rows(self.connection, tables.scalar, _scalar_columns(segment, points))
        self.news(run).points.extend(points)

    def fold_all(self) -> None:
        """Add everything new to the roll-ups; the last thing in a transaction."""
        for run in list(self._news):
            self.fold(run)

    def fold(self, run: int) -> None:
        """Add what is new in one run to its roll-ups."""
        news = self._news.pop(run, News())
        levels = self._levels(run)
        news.samples.fold(self.connection, levels)
        news.tallies.fold(self.connection, levels)
        rollup.add_points(self.connection, news.points, levels)
        refold(self.connection, news.revised, levels)

    def _levels(self, run: int) -> int:
        """How many levels the run needs by now; those it did not have yet are begun."""
        stored = self.connection.execute(_LENGTH, {"of_run": run}).one()
        needed = levels_for(stored.length)
        for level in range(stored.levels, needed):
            rollup.promote(self.connection, run, level)
            promote(self.connection, tables.sample_rollup, run, level)
            promote(self.connection, tables.tally_rollup, run, level)
        if needed > stored.levels:
            self.connection.execute(update(tables.run).where(tables.run.c.key == run).values(levels=needed))
        return needed

    def _enter_series(self, run: int, name: str, sequence: int) -> int:
        count = select(func.count()).select_from(tables.series).where(tables.series.c.run == run)
        if self.connection.execute(count).scalar_one() >= MAX_SERIES:
            message = f"expected at most {MAX_SERIES} series in a run, got {name!r} as one more"
            raise BadRecord("steps", sequence, message)
        new = insert(tables.series).values(run=run, name=name).returning(tables.series.c.key)
        return int(self.connection.execute(new).scalar_one())


def _scalar_columns(segment: int, points: Sequence[Points]) -> Columns:
    series, rank, steps, values = in_order(points)
    return {
        "series": series,
        "rank": rank,
        "step": steps,
        "segment": np.full(len(steps), segment),
        "value": values,
        "flag": flags(values),
    }


_SERIES = select(tables.series.c.name, tables.series.c.key).where(
    tables.series.c.run == bindparam("of_run"), tables.series.c.name.in_(bindparam("names", expanding=True))
)
_LENGTH = select(tables.run.c.levels, tables.run.c.length).where(tables.run.c.key == bindparam("of_run"))
