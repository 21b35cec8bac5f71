"""The runs list: any number of runs in the same few queries."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from sqlalchemy import ColumnElement, Connection, Row, Select, Text, and_, case, cast, func, or_, select

from scalescope_server.store import tables
from scalescope_server.store.alerts import count_open
from scalescope_server.store.cursors import packed_cursor, unpacked_cursor
from scalescope_server.store.levels import bucket_size, finest
from scalescope_server.store.records import RunState, RunSummary, Severity
from scalescope_server.store.values import scale_of

SPARKLINE_POINTS = 60
MAX_RUNS = 200
# Mildest first.
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which runs: of a project, in a state, with a text in id, name, project, note or tags; None: any."""

    project: str | None = None
    state: RunState | None = None
    text: str | None = None


def list_runs(
    connection: Connection, chosen: Filter, *, limit: int, cursor: str | None, silent_before: float
) -> tuple[list[RunSummary], str | None]:
    """Runs, newest first, and the cursor of the next ones; ``limit`` is clamped to 1 to ``MAX_RUNS``.

    ``silent_before``: a run that has not ended and was last seen before this time is silent.

    Raises:
        BadCursor: for a cursor that did not come from here.
    """
    row = tables.run.c
    limit = min(max(limit, 1), MAX_RUNS)
    query = _filtered(select(tables.run), chosen, silent_before)
    if cursor is not None:
        started_at, key = unpacked_cursor(cursor, tuple[float, int])
        query = query.where(or_(row.started_at < started_at, and_(row.started_at == started_at, row.key < key)))
    query = query.order_by(row.started_at.desc(), row.key.desc()).limit(limit + 1)
    found = connection.execute(query).all()
    page = found[:limit]
    after = packed_cursor((page[-1].started_at, page[-1].key)) if len(found) > limit else None
    return summaries(connection, page, silent_before), after


def summaries(connection: Connection, runs: Sequence[Row[Any]], silent_before: float) -> list[RunSummary]:
    """The lines of the list for rows of ``run``, in their order."""
    keys = [run.key for run in runs]
    findings = _findings(connection, keys)
    firing = count_open(connection, keys)
    sparklines = _sparklines(connection, runs)
    return [
        _summary(run, findings[run.key], firing.get(run.key, 0), sparklines[run.key], silent_before) for run in runs
    ]


def count_states(connection: Connection, silent_before: float) -> dict[RunState, int]:
    """How many runs are in each state, by the same rules as :func:`state_of`."""
    row = tables.run.c
    alive = case((row.last_seen_at < silent_before, "silent"), else_="running")
    ended = case((row.ending == "crashed", "crashed"), else_="finished")
    state = case((row.ending.is_(None), alive), else_=ended).label("state")
    return {
        found.state: found.runs
        for found in connection.execute(select(state, func.count().label("runs")).where(~row.doomed).group_by(state))
    }


def state_of(run: Row[Any], silent_before: float) -> RunState:
    """Ended as its trainer said; else silent or running by its last sign of life."""
    if run.ending is not None:
        return "crashed" if run.ending == "crashed" else "finished"
    return "silent" if run.last_seen_at < silent_before else "running"


def _filtered(query: Select[Any], chosen: Filter, silent_before: float) -> Select[Any]:
    row = tables.run.c
    query = query.where(~row.doomed)
    if chosen.project is not None:
        query = query.where(row.project == chosen.project)
    if chosen.state is not None:
        query = query.where(_in_state(chosen.state, silent_before))
    if chosen.text:
        searched = (row.id, row.name, row.project, row.note, cast(row.tags, Text))
        query = query.where(or_(*(column.icontains(chosen.text, autoescape=True) for column in searched)))
    return query


def _in_state(state: RunState, silent_before: float) -> ColumnElement[bool]:
    row = tables.run.c
    if state in ("finished", "crashed"):
        return row.ending == state
    silent = row.last_seen_at < silent_before
    return and_(row.ending.is_(None), silent if state == "silent" else ~silent)


def _summary(
    run: Row[Any], findings: dict[str, int], firing: int, sparkline: list[float | None], silent_before: float
) -> RunSummary:
    return RunSummary(
        id=run.id,
        project=run.project,
        name=run.name,
        state=state_of(run, silent_before),
        tags=run.tags,
        started_at=run.started_at,
        last_seen_at=run.last_seen_at,
        attempted=run.attempted,
        applied=run.attempted - run.skipped,
        skipped=run.skipped,
        last_step=run.last_step if run.last_step >= 0 else None,
        scale=scale_of(run.scale, run.scale_flag),
        findings=findings,
        worst=max(findings, key=lambda severity: SEVERITIES.index(severity), default=None),
        firing=firing,
        sparkline=sparkline,
    )


def _findings(connection: Connection, keys: Sequence[int]) -> dict[int, dict[str, int]]:
    """Run -> severity -> how many episodes, open and closed."""
    row = tables.finding.c
    query = select(row.run, row.severity, func.count()).where(row.run.in_(keys)).group_by(row.run, row.severity)
    found: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for run, severity, count in connection.execute(query):
        found[run][severity] = count
    return found


def _sparklines(connection: Connection, runs: Sequence[Row[Any]]) -> dict[int, list[float | None]]:
    """Run -> log2 of the scale at each update, or of a longer run at each of at most 60 buckets; null: no scale.

    A bucket has two values, its extremes, since a scale that thrashes leaves most buckets as it came into them.
    """
    levels = {run.key: finest(0, run.last_step + 1, SPARKLINE_POINTS, lowest=int(run.pruned_below > 0)) for run in runs}
    values = {run.key: (run.last_step // bucket_size(levels[run.key]) + 1) * _width(levels[run.key]) for run in runs}
    found: dict[int, list[float | None]] = {key: [None] * count for key, count in values.items()}
    exact = [key for key, level in levels.items() if level == 0]
    rolled = {key: level for key, level in levels.items() if level}
    for key, place, *scales in (*_exact_scales(connection, exact), *_rolled_scales(connection, rolled)):
        first = place * len(scales)
        if first < len(found[key]):
            found[key][first : first + len(scales)] = map(_octaves, scales)
    return found


def _width(level: int) -> int:
    return 2 if level else 1


def _octaves(scale: float | None) -> float | None:
    return math.log2(scale) if scale is not None and scale > 0 else None


def _exact_scales(connection: Connection, keys: Sequence[int]) -> Sequence[tuple[Any, ...]]:
    row = tables.step.c
    query = select(row.run, row.step, row.scale).where(row.run.in_(keys), row.rank == 0)
    return [tuple(found) for found in connection.execute(query)] if keys else []


def _rolled_scales(connection: Connection, levels: dict[int, int]) -> Sequence[tuple[Any, ...]]:
    """(run, bucket, both extremes of the scale), that which it ended nearer to last.

    Told apart here: a difference that leaves the range of floats is an error on Postgres.
    """
    if not levels:
        return []
    series, row = tables.series.c, tables.rollup.c
    at_level = or_(
        *(
            and_(row.level == level, series.run.in_([key for key, of_run in levels.items() if of_run == level]))
            for level in sorted(set(levels.values()))
        )
    )
    query = (
        select(series.run, row.bucket, row.min, row.max, row.last)
        .join(tables.rollup, row.series == series.key)
        .where(series.name == "scale", row.rank == 0, at_level)
    )
    return [(run, bucket, *_toward(low, high, last)) for run, bucket, low, high, last in connection.execute(query)]


def _toward(low: float | None, high: float | None, last: float | None) -> tuple[float | None, float | None]:
    """Both extremes, that which ``last`` is nearer to last."""
    if low is None or high is None or last is None:
        return low, high
    return (high, low) if last - low < high - last else (low, high)
