"""Reads of the store for the heat map of layers: a measure of samples or tallies, evaluated column by column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.formats import FP16
from scalescope.numerics.measures import evaluate

from scalescope_server.figures.grid import Bucket, Grid, gridded
from scalescope_server.figures.layers import MAX_ROWS, Measured, label
from scalescope_server.figures.measures import MEASURES
from scalescope_server.figures.reads import (
    MAX_COLUMNS,
    Wanted,
    cadence_of,
    run_length,
    sampled_grid,
    with_neighbours,
)
from scalescope_server.figures.walls import as_parts
from scalescope_server.layer_rows import (
    SAMPLED,
    TALLIED,
    LayerMeasure,
    LayerRow,
    computed_rows,
    module_rows,
    stored_rows,
)
from scalescope_server.store.records import RunDetail, RunId, TallyBucket
from scalescope_server.tallies import PLANS, TallyMeasure

if TYPE_CHECKING:
    from scalescope_server.store.reader import Reader


def read_measured(
    reader: Reader, run: RunId, wanted: Wanted, detail: RunDetail, measure: LayerMeasure, match: str
) -> Measured:
    """``measure`` of the rows whose name contains ``match``, whatever the case."""
    tallied = TALLIED.get(measure)
    rows = _rows(reader, run, wanted, detail, measure)
    matching = [row for row in rows if match.casefold() in label(row.name).casefold()]
    shown = matching[:MAX_ROWS]
    names = [row.name for row in shown]
    if tallied is not None:
        tallies = tally_grid(reader, run, wanted, detail, tallied, [row.position for row in shown])
        formats = [row.format or FP16 for row in shown]
        read = PLANS[tallied].read
        values = _evaluated(tallies, len(shown), lambda column: read(column, formats))
        return Measured(names, tallies, values, len(matching))
    positions = {row.position for row in shown}
    parameters = [p for p in detail.parameters if p.index in positions]
    samples, _, _ = sampled_grid(reader, run, wanted, parameters, detail)
    known = [row.format for row in shown]
    values = _evaluated(samples, len(shown), lambda column: evaluate(SAMPLED[measure], as_parts(column), known))
    return Measured(names, samples, values, len(matching))


def tally_grid(
    reader: Reader, run: RunId, wanted: Wanted, detail: RunDetail, measure: TallyMeasure, positions: Sequence[int]
) -> Grid[TallyBucket]:
    """The tallies that ``measure`` is read from, in no more columns than a screen shows, however rare they are."""
    plan = PLANS[measure]
    points = min(MAX_COLUMNS, wanted.points)
    bucket, found = reader.tallies(
        run, plan.kind, plan.columns, positions, start=wanted.start, stop=wanted.stop, points=points
    )
    span = found[-1].step - found[0].step + 1 if found else 1
    width = -(-max(detail.every, -(-span // MAX_COLUMNS)) // bucket) * bucket

    def read(start: int, stop: int) -> Sequence[TallyBucket]:
        return reader.tallies(run, plan.kind, plan.columns, positions, start=start, stop=stop, points=points)[1]

    cadence = cadence_of(wanted, detail, bucket)
    return gridded(with_neighbours(read, found, width, cadence, run_length(detail)), width, cadence)


def _rows(reader: Reader, run: RunId, wanted: Wanted, detail: RunDetail, measure: LayerMeasure) -> list[LayerRow]:
    if MEASURES[measure].rows == "module":
        listed = reader.listed(run, stop=wanted.stop)
        return module_rows(listed.modules, listed.parameters, listed.setup)
    return stored_rows(detail.parameters) if measure in TALLIED else computed_rows(detail.parameters)


def _evaluated(
    grid: Grid[Bucket], rows: int, read: Callable[[Sequence[Bucket]], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """NaN in a column without any."""
    values = np.full((rows, len(grid.columns)), np.nan)
    for i, column in enumerate(grid.columns):
        if column:
            values[:, i] = read(column)
    return values
