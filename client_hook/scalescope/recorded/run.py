"""One stored run, asked for what it holds."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from scalescope.recorded.arrays import Buckets, Events, Histogram, Layers, Points, Real, Whole
from scalescope.recorded.sources import Call, Option, Options, Source
from scalescope.wire import SampleKind

# What an export says of an update beside its series.
_PLACE = ("segment", "rank", "step", "at")
_TEXTS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}


class RecordedRun:
    """A run out of a server or a database; see :func:`scalescope.open_run`.

    Every method asks anew, so a run that goes on gives more each time. Steps are those of the run, [start, stop) where
    they are given. ``rank`` None: of rank 0, and of all ranks merged where that is one whole. Each raises
    :class:`scalescope.ReadError` where the run is not there or cannot be read.
    """

    def __init__(self, run: str, source: Source) -> None:
        self.id = run
        self._source = source

    def __repr__(self) -> str:
        return f"RecordedRun({self.id!r})"

    def detail(self) -> dict[str, Any]:
        """Everything but the numbers over time: state, config, environment, parameters, segments, ranks, ledger."""
        return dict(self._json(""))

    def findings(self) -> list[dict[str, Any]]:
        """The named causes, worst first."""
        return list(self._json("findings")["items"])

    def series_names(self) -> list[str]:
        """The series that :meth:`series` knows."""
        head = b"".join(self._ask("export", format="csv", what="updates", to=0)).decode()
        own = next(csv.reader([head.splitlines()[0]]))[len(_PLACE) :]
        return [name.removeprefix("series/") for name in own]

    def series(
        self, name: str, *, start: int | None = None, stop: int | None = None, rank: int | None = None
    ) -> Points:
        """Every value of a series, as it was told. Of updates that were pruned there are only :meth:`buckets`."""
        span: dict[str, Option | None] = {"series": name, "from": start, "to": stop}
        found = [] if rank is not None else list(self._lines(what="merged", **span))
        if not found:
            found = list(self._lines(what="updates", **(span | {"rank": rank or 0})))
        told = [(row["step"], _number(value)) for row in found if (value := _value_of(row, name)) is not None]
        return Points(_whole([step for step, _ in told]), _real([value for _, value in told]))

    def buckets(
        self,
        name: str,
        *,
        start: int | None = None,
        stop: int | None = None,
        points: int = 1500,
        rank: int | None = None,
    ) -> Buckets:
        """A series in at most ``points`` buckets (1,500 at the most), whatever its length; each keeps its extremes."""
        found = self._json("series", name=name, points=points, rank=rank, **{"from": start, "to": stop})
        columns = found["series"][name]
        step, n, nan, inf = (_whole(columns[key]) for key in ("step", "n", "nan", "inf"))
        low, high, last, total = (_real(columns[key]) for key in ("min", "max", "last", "sum"))
        return Buckets(found["bucket"], step, n, low, high, last, total, nan, inf)

    def events(
        self,
        kind: str | None = None,
        *,
        start: int | None = None,
        stop: int | None = None,
        rank: int | None = None,
    ) -> Events:
        """Every event, or those of a ``kind`` ("skip", "growth", ...), of every rank or of one."""
        rows = list(self._lines(what="events", kind=kind, rank=rank, **{"from": start, "to": stop}))
        place = {key: _whole([row[key] for row in rows]) for key in ("step", "rank")}
        kinds, data = [row["kind"] for row in rows], [row["data"] for row in rows]
        return Events(**place, at=_real([row["at"] for row in rows]), kind=kinds, data=data)

    def histogram(
        self,
        name: str,
        *,
        kind: SampleKind = "grad",
        start: int | None = None,
        stop: int | None = None,
        points: int = 300,
        rank: int | None = None,
    ) -> Histogram:
        """The exponent histograms of a parameter, or of a module for ``forward`` and ``grad_output``, over time.

        At most ``points`` buckets (300 at the most); narrow the steps until ``bucket`` is 1 for the samples themselves.
        """
        span = {"from": start, "to": stop}
        found = self._json("histogram", parameter=name, kind=kind, points=points, rank=rank, **span)
        exponents, steps = _whole(found["exponents"]), _whole(found["step"])
        return Histogram(
            bucket=found["bucket"],
            exponents=exponents,
            step=steps,
            scale=_real([_number(scale) for scale in found["scale"]]),
            counts=_whole(found["counts"]).reshape(len(steps), len(exponents)),
            **{key: _whole(found[key]) for key in ("zero", "inf", "nan", "samples")},
        )

    def layers(
        self,
        measure: str,
        *,
        kind: SampleKind = "grad",
        start: int | None = None,
        stop: int | None = None,
        points: int = 300,
        rank: int | None = None,
    ) -> Layers:
        """A measure (``flush_share``, ``norm``, ``update_ratio``, ...) of all layers, in at most ``points`` buckets."""
        found = self._json(
            "layers", measure=measure, kind=kind, points=points, rank=rank, **{"from": start, "to": stop}
        )
        names, steps = found["parameters"], _whole(found["step"])
        values = _real([value for row in found["values"] for value in row]).reshape(len(names), len(steps))
        return Layers(found["measure"], found["bucket"], names, steps, values, _whole(found["samples"]))

    def _json(self, call: Call, **options: Option | None) -> Any:  # noqa: ANN401 - whatever the call answers
        return msgspec.json.decode(b"".join(self._ask(call, **options)))

    def _lines(self, **options: Option | None) -> Iterator[dict[str, Any]]:
        left = b""
        for piece in self._ask("export", **options):
            *lines, left = (left + piece).split(b"\n")
            for line in lines:
                yield msgspec.json.decode(line)

    def _ask(self, call: Call, **options: Option | None) -> Iterator[bytes]:
        given: Options = {name: value for name, value in options.items() if value is not None}
        return self._source.ask(self.id, call, given)


def _value_of(row: dict[str, Any], name: str) -> float | str | None:
    """The one series of a row, whatever it is called there."""
    found: float | str | None = row.get(f"series/{name}", row.get(name) if name not in _PLACE else None)
    return found


def _number(value: float | str | None) -> float:
    if value is None:
        return float("nan")
    return _TEXTS[value] if isinstance(value, str) else float(value)


def _whole(values: Sequence[Any]) -> Whole:
    return np.array(values, np.int64)


def _real(values: Sequence[float | None]) -> Real:
    """Null becomes NaN."""
    return np.array(values, np.float64)
