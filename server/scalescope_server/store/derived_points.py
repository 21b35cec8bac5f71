"""Series that are read out of samples and tallies, on their way into the tables.

The first record of a step is the one that tells them; what comes after it, in whatever batch, changes nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import bindparam, select

from scalescope_server.store import tables
from scalescope_server.store.derived import Values
from scalescope_server.store.origin import Origin
from scalescope_server.store.pruned import pruned_steps
from scalescope_server.store.rollup import Points
from scalescope_server.store.transaction import Transaction


def enter_derived(
    transaction: Transaction, origin: Origin, steps: NDArray[np.int64], values: Values, *, of_all: str, sequence: int
) -> None:
    """Store the series of records of one caller: the step of each, int64 [records], and their values.

    ``of_all``: the series that all of them tell which tell any. ``sequence``: of one of them.
    """
    told = np.flatnonzero(np.any([given for given, _ in values.values()], axis=0))
    if not told.size:
        return
    rising, first = np.unique(steps[told], return_index=True)
    known = _known_steps(transaction, origin, rising, of_all, sequence)
    rows = told[first[~np.isin(rising, known)]]
    chosen = {name: (rows[given[rows]], each) for name, (given, each) in values.items()}
    chosen = {name: (some, each) for name, (some, each) in chosen.items() if some.size}
    keys = transaction.series(origin.run, list(chosen), sequence=sequence)
    points = [Points(keys[name], origin.rank, steps[some], each[some]) for name, (some, each) in chosen.items()]
    transaction.add_scalars(origin.run, origin.segment, points)


def _known_steps(
    transaction: Transaction, origin: Origin, steps: NDArray[np.int64], name: str, sequence: int
) -> NDArray[np.int64]:
    """Those of the rising steps for which values are stored, or were before they were pruned."""
    if steps[0] > origin.highest_sample:
        return np.empty(0, np.int64)
    series = transaction.series(origin.run, [name], sequence=sequence)[name]
    of_caller = {"of_series": series, "of_rank": origin.rank, "of_segment": origin.segment}
    stored = transaction.connection.execute(_STEPS, of_caller | {"start": int(steps[0]), "end": int(steps[-1])})
    pruned = steps[pruned_steps(transaction.connection, origin, steps)]
    return np.concatenate([np.array(stored.scalars().all(), np.int64), pruned])


_STEPS = select(tables.scalar.c.step).where(
    tables.scalar.c.series == bindparam("of_series"),
    tables.scalar.c.rank == bindparam("of_rank"),
    tables.scalar.c.segment == bindparam("of_segment"),
    tables.scalar.c.step.between(bindparam("start"), bindparam("end")),
)
