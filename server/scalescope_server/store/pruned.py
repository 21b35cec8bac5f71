"""Which updates are no longer kept exactly: what reading them, and what comes late of them, has to know."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, bindparam, select

from scalescope_server.store import tables
from scalescope_server.store.origin import Origin


def is_pruned(connection: Connection, run: int, start: int, stop: int) -> bool:
    """Whether the exact values of any of the steps [start, stop) are gone, of any rank."""
    of_range = {"of_run": run, "start": start, "end": stop - 1}
    return connection.execute(_ANY, of_range).first() is not None


def pruned_steps(
    connection: Connection, origin: Origin, steps: NDArray[np.int64], *, of_all: bool = False
) -> NDArray[np.bool_]:
    """Which of the rising ``steps`` the caller had told before their exact values were removed, bool [steps].

    ``of_all``: which of them any rank of its segment had told.
    """
    gone = np.zeros(len(steps), np.bool_)
    if not steps.size or steps[0] >= origin.pruned_below:
        return gone
    of_range = {"of_segment": origin.segment, "start": int(steps[0]), "end": int(steps[-1])}
    query, of_rank = (_OF_SEGMENT, {}) if of_all else (_OF_RANK, {"of_rank": origin.rank})
    for first, last in connection.execute(query, of_range | of_rank):
        gone |= (steps >= first) & (steps <= last)
    return gone


_row = tables.pruned.c
_meets = (_row.first_step <= bindparam("end")) & (_row.last_step >= bindparam("start"))
_ANY = select(_row.rank).where(_row.run == bindparam("of_run"), _meets).limit(1)
_OF_SEGMENT = select(_row.first_step, _row.last_step).where(_row.segment == bindparam("of_segment"), _meets)
_OF_RANK = _OF_SEGMENT.where(_row.rank == bindparam("of_rank"))
