"""What retention asks of the store before it removes anything."""

from __future__ import annotations

from msgspec import Struct
from sqlalchemy import bindparam, select

from scalescope_server.store import tables
from scalescope_server.store.leases import clock_of
from scalescope_server.store.pruning import Piece, count_piece
from scalescope_server.store.records import RunId
from scalescope_server.store.snapshots import Snapshots, found_run
from scalescope_server.store.space import Space, read_space


class Prunable(Struct, frozen=True):
    """A run that may hold what is old: ``looked_at`` of its ``length`` updates were by an earlier pass."""

    run: RunId
    looked_at: int
    length: int


class PruningReader(Snapshots):
    """Part of :class:`~scalescope_server.store.reader.Reader`, whose words hold here too."""

    def is_whole(self, run: RunId) -> bool:
        """Whether every update of a run is still kept exactly. :class:`NotFound`."""
        with self.reading() as connection:
            return bool(found_run(connection, run).pruned_below == 0)

    def prunable(self, before: float) -> list[Prunable]:
        """The runs that were begun before then, in the order in which they were first told."""
        with self.reading() as connection:
            found = connection.execute(_PRUNABLE, {"before": before})
            return [Prunable(RunId(run), looked_at, length) for run, looked_at, length in found]

    def before(self, now: float, age_s: float) -> float:
        """Where what is older than ``age_s`` ends, by the caller's clock and by the database's."""
        with self.reading() as connection:
            return min(now, clock_of(connection)) - age_s

    def space(self) -> Space:
        """What the database takes on the disk."""
        with self.reading() as connection:
            return read_space(connection)

    def count_prunable(self, run: RunId, start: int, before: float) -> Piece:
        """What :meth:`Writer.prune` would remove."""
        with self.reading() as connection:
            return count_piece(connection, run, start, before)


_run = tables.run.c
_PRUNABLE = (
    select(_run.id, _run.pruned_below, _run.length)
    .where(~_run.doomed, _run.started_at < bindparam("before"))
    .order_by(_run.key)
)
