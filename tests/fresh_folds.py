"""All levels of a run against a fold of its exact rows by the definition, one value after the other."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from scalescope_server.store import tables
from scalescope_server.store.levels import FACTOR
from scalescope_server.store.tables import STEP_COLUMNS
from scalescope_server.store.values import FLAG_BITS, FLAG_MASK, restored
from sqlalchemy import Connection, select

from tests.fresh_piles import stale_piles


class Place(NamedTuple):
    """A bucket of one series and rank."""

    series: int
    rank: int
    level: int
    bucket: int


Valued = tuple[int, float]


def stale_levels(connection: Connection, run: str) -> list[str]:
    """A sentence for each bucket of the roll-ups that is not what the exact rows amount to; none where all are."""
    key, levels = connection.execute(select(tables.run.c.key, tables.run.c.levels).where(tables.run.c.id == run)).one()
    return [*_stale_folds(connection, key, levels), *stale_piles(connection, key, levels)]


def _stale_folds(connection: Connection, run: int, levels: int) -> Iterator[str]:
    stored = _stored(connection, run)
    inside: defaultdict[Place, list[Valued]] = defaultdict(list)
    for series, rank, step, value in _exact(connection, run):
        for level in range(1, levels + 1):
            inside[Place(series, rank, level, step // FACTOR**level)].append((step, value))
    for place in sorted({*stored, *inside}):
        wrong = _wrong(stored.get(place), inside.get(place, []))
        if wrong:
            yield f"{place}: {wrong}"


def _wrong(row: Any, values: Sequence[Valued]) -> str:
    """What of a stored bucket differs from a fold of ``values``."""
    if row is None or not values:
        return f"expected {len(values)} values, got {row}"
    finite = [value for _, value in values if math.isfinite(value)]
    last_step = max(step for step, _ in values)
    # Of two segments that told the same step either may have come last.
    lasts = [value if math.isfinite(value) else None for step, value in values if step == last_step]
    expected = {
        "n": len(finite),
        "min": min(finite, default=None),
        "max": max(finite, default=None),
        "last_step": last_step,
        "nan": sum(math.isnan(value) for _, value in values),
        "inf": sum(math.isinf(value) for _, value in values),
    }
    found = [name for name, value in expected.items() if getattr(row, name) != value]
    total = math.fsum(finite)
    if not math.isclose(row.sum or 0.0, total, rel_tol=1e-9, abs_tol=1e-9 * sum(map(abs, finite))):
        found.append("sum")
    if row.last not in lasts:
        found.append("last")
    return f"{', '.join(found)}: expected {expected}, sum {total}, last {lasts}, got {row}" if found else ""


def _stored(connection: Connection, run: int) -> dict[Place, Any]:
    of_run = (
        select(tables.rollup)
        .join(tables.series, tables.series.c.key == tables.rollup.c.series)
        .where(tables.series.c.run == run)
    )
    return {Place(row.series, row.rank, row.level, row.bucket): row for row in connection.execute(of_run)}


def _exact(connection: Connection, run: int) -> Iterator[tuple[int, int, int, float]]:
    """(series, rank, step, value) of every point that is told."""
    of_run = select(tables.series.c.name, tables.series.c.key).where(tables.series.c.run == run)
    series = {row.name: row.key for row in connection.execute(of_run)}
    for row in connection.execute(select(tables.step).where(tables.step.c.run == run)):
        for place, name in enumerate(STEP_COLUMNS):
            value, flag = getattr(row, name), row.nonfinite >> (FLAG_BITS * place) & FLAG_MASK
            if value is not None or flag:
                yield series[name], row.rank, row.step, float(restored([value], [flag])[0])
    scalars = (
        select(tables.scalar)
        .join(tables.series, tables.series.c.key == tables.scalar.c.series)
        .where(tables.series.c.run == run)
    )
    for row in connection.execute(scalars):
        yield row.series, row.rank, row.step, float(restored([row.value], [row.flag])[0])
