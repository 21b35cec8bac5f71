"""Series that are read out of samples and tallies, on their way into the tables.

The first record of a step is the one that tells them; what comes after it, in whatever batch, changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sqlalchemy import bindparam, select

from scalescope_server.store import tables
from scalescope_server.store.origin import Origin
from scalescope_server.store.pruned import pruned_steps
from scalescope_server.store.rollup import Points
from scalescope_server.store.transaction import Transaction

Told = tuple[int, dict[str, float]]


def enter_derived(
    transaction: Transaction, origin: Origin, told: Sequence[Told], *, of_all: str, sequence: int
) -> None:
    """Store the series of records of one caller: the step of each, and values by name.

    ``of_all``: the series that all of them tell. ``sequence``: of one of them.
    """
    told = [(step, values) for step, values in told if values]
    if not told:
        return
    known = _known_steps(transaction, origin, sorted(step for step, _ in told), of_all, sequence)
    columns: dict[str, dict[int, float]] = {}
    for step, values in told:
        if step not in known:
            known.add(step)
            for name, value in values.items():
                columns.setdefault(name, {})[step] = value
    keys = transaction.series(origin.run, list(columns), sequence=sequence)
    points = [_points(keys[name], origin.rank, values) for name, values in columns.items()]
    transaction.add_scalars(origin.run, origin.segment, points)


def _points(series: int, rank: int, values: dict[int, float]) -> Points:
    steps = np.array(sorted(values), np.int64)
    return Points(series, rank, steps, np.array([values[step] for step in steps.tolist()], np.float64))


def _known_steps(transaction: Transaction, origin: Origin, steps: Sequence[int], name: str, sequence: int) -> set[int]:
    """Those of the rising steps for which values are stored, or were before they were pruned."""
    if steps[0] > origin.highest_sample:
        return set()
    series = transaction.series(origin.run, [name], sequence=sequence)[name]
    of_caller = {"of_series": series, "of_rank": origin.rank, "of_segment": origin.segment}
    span = {"start": steps[0], "end": steps[-1]}
    pruned = np.array(steps)[pruned_steps(transaction.connection, origin, np.array(steps))]
    return {*transaction.connection.execute(_STEPS, {**of_caller, **span}).scalars(), *pruned.tolist()}


_STEPS = select(tables.scalar.c.step).where(
    tables.scalar.c.series == bindparam("of_series"),
    tables.scalar.c.rank == bindparam("of_rank"),
    tables.scalar.c.segment == bindparam("of_segment"),
    tables.scalar.c.step.between(bindparam("start"), bindparam("end")),
)
