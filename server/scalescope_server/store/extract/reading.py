"""A run out of the store, table by table: each page is a short read transaction, none is held between two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import get_args

from scalescope_server.store.errors import NotFound
from scalescope_server.store.extract import described, happenings, measured, updates
from scalescope_server.store.extract.frontier import Frontier, frontier_of
from scalescope_server.store.extract.tables import Chosen, Field, Page, Position, Table, TableName
from scalescope_server.store.records import RunDetail, RunId
from scalescope_server.store.run_detail import read_run
from scalescope_server.store.snapshots import Snapshots, found_run

TABLES: tuple[TableName, ...] = get_args(TableName)

_MADE: dict[TableName, Callable[[Frontier, RunDetail], Table]] = {
    "run": described.run_table,
    "parameters": lambda _, detail: described.parameters_table(detail),
    "modules": lambda _, detail: described.modules_table(detail),
    "segments": lambda _, detail: described.segments_table(detail),
    "ranks": lambda _, detail: described.ranks_table(detail),
    "updates": lambda frontier, _: updates.updates_table(frontier),
    "merged": lambda frontier, _: updates.merged_table(frontier),
    "events": lambda frontier, _: happenings.events_table(frontier),
    "windows": lambda frontier, _: happenings.windows_table(frontier),
    "setups": lambda frontier, _: happenings.setups_table(frontier),
    "samples": lambda frontier, _: measured.samples_table(frontier),
    "tallies": lambda frontier, _: measured.tallies_table(frontier),
    "probes": lambda frontier, _: measured.probes_table(frontier),
    "findings": lambda frontier, _: happenings.findings_table(frontier),
}


@dataclass(frozen=True, slots=True)
class Extract:
    """A run as it stood when the extract began.

    What came later is left out, but for values of updates that were there already.
    """

    run: RunId
    _snapshots: Snapshots
    _frontier: Frontier
    _detail: RunDetail

    @property
    def steps(self) -> int:
        """One more than the highest step that is read."""
        return self._frontier.stop

    def fields(self, name: TableName) -> tuple[Field, ...]:
        return self._table(name).fields

    def pages(self, name: TableName) -> Iterator[Page]:
        """The table's rows, a page after the other; some may be empty.

        Raises:
            NotFound: if the run was deleted meanwhile.
            Unavailable: if the database cannot be read now.
        """
        table, position = self._table(name), None
        while True:
            page = self._page(table, position)
            yield page
            if page.following is None:
                return
            position = page.following

    def _table(self, name: TableName) -> Table:
        return _MADE[name](self._frontier, self._detail)

    def _page(self, table: Table, position: Position | None) -> Page:
        with self._snapshots.reading() as connection:
            if found_run(connection, self.run).key != self._frontier.run:
                raise NotFound(self.run)
            return table.read(connection, position)


def begin_extract(snapshots: Snapshots, run: RunId, chosen: Chosen, silent_before: float, now: float) -> Extract:
    """The run as it stands ``now``. :class:`NotFound`."""
    with snapshots.reading() as connection:
        row = found_run(connection, run)
        frontier = frontier_of(connection, row, chosen)
        return Extract(run, snapshots, frontier, read_run(connection, row, silent_before, now))
