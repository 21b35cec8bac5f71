"""The core series of a run, read out of the records that are sent: in the order in which they are sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from scalescope.mirrors.mirror import Point
from scalescope.mirrors.pace import chosen
from scalescope.numerics.exponents import Histograms
from scalescope.numerics.formats import FloatFormat, known_format
from scalescope.numerics.measures import Part, evaluate
from scalescope.packing import unpack
from scalescope.rows import column_arrays, indexes, times
from scalescope.wire import Layout, Record, Sample, Steps

# Of every update.
STEP_SERIES = ("scale", "skipped", "growth_tracker", "hook_ms")
# A sum over the run, which no thinning loses anything of.
SKIPPED_TOTAL = "skipped_total"


class SeriesReader:
    """Reads records of one rank, each once."""

    def __init__(self) -> None:
        self._formats: list[FloatFormat | None] = []
        self._skipped = 0.0

    def read(self, records: Sequence[Record], *, most: int) -> list[Point]:
        """The points of ``records``, one for each update, by step: of more than ``most``, those of :func:`chosen`.

        Samples are unpacked of these alone, which takes about a millisecond for each.
        """
        at: dict[int, float] = {}
        values: defaultdict[int, dict[str, float]] = defaultdict(dict)
        samples: dict[int, Sample] = {}
        for record in records:
            if isinstance(record, Layout):
                self._formats = [known_format(parameter.compute_format) for parameter in record.parameters]
            elif isinstance(record, Sample) and record.kind == "grad":
                at.setdefault(record.step, record.at)
                samples[record.step] = record
            elif isinstance(record, Steps):
                self._read_steps(record, at, values)
        points = [Point(step, at[step], values[step]) for step in sorted(at)]
        kept = chosen(points, samples, most)
        for point in kept:
            if point.step in samples:
                values[point.step].update(self._of_sample(samples[point.step]))
        return [point for point in kept if point.values]

    def _read_steps(self, steps: Steps, at: dict[int, float], values: defaultdict[int, dict[str, float]]) -> None:
        at.update(zip(range(steps.first, steps.first + steps.count), times(steps).tolist(), strict=True))
        for name in STEP_SERIES:
            if name in steps.columns:
                rows, numbers = column_arrays(steps.columns[name], steps.count)
                for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
                    values[steps.first + row][name] = number
        for step in range(steps.first, steps.first + steps.count):
            self._skipped += values[step].get("skipped", 0.0)
            values[step][SKIPPED_TOTAL] = self._skipped

    def _of_sample(self, sample: Sample) -> dict[str, float]:
        table = unpack(sample.table)
        if not table.numel.sum():
            return {}
        whole = [Part(table.total(), sample.scale, np.ones(1, np.int64), periodic=True)]
        found = {
            "grad_norm": float(evaluate("norm", whole, [None])[0]),
            "zero_share": float(evaluate("zero_share", whole, [None])[0]),
            "flush_share": float(evaluate("flush_share", whole, [None])[0]),
            "subnormal_share": self._subnormal_share(sample, table),
        }
        # Not a number: a share of nothing. A norm is inf or NaN where a gradient is.
        broken = bool(table.nonfinite.any())
        found["grad_norm"] = np.inf if broken else found["grad_norm"]
        return {name: value for name, value in found.items() if not np.isnan(value)}

    def _subnormal_share(self, sample: Sample, table: Histograms) -> float:
        """Over the elements whose compute format is known; NaN where it is of none."""
        formats = [self._format(index) for index in indexes(sample).tolist()]
        part = Part(table, sample.scale, np.ones(table.rows, np.int64), periodic=True)
        shares, numel = evaluate("subnormal_share", [part], formats), table.numel.astype(np.float64)
        known = ~np.isnan(shares)
        whole = float(numel[known].sum())
        return float((shares[known] * numel[known]).sum()) / whole if whole else float("nan")

    def _format(self, index: int) -> FloatFormat | None:
        return self._formats[index] if index < len(self._formats) else None
