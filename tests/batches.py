"""Records and batches as a trainer would send them, for the store's tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.exponents import MIN_EXPONENT, Histograms
from scalescope.packing import pack
from scalescope.rows import column
from scalescope.wire import (
    PROTOCOL,
    Bye,
    ByeReason,
    Event,
    EventKind,
    Hello,
    Layout,
    Module,
    Parameter,
    Part,
    Probe,
    Record,
    Sample,
    SampleKind,
    SampleReason,
    ScalerSettings,
    Setup,
    Steps,
    Subject,
    Tally,
    Window,
)
from scalescope_server.store.delivery import Batch

STARTED_AT = 1_000.0

Values = Mapping[int, float] | Sequence[float]


def hello(
    run: str = "run",
    segment: str = "first",
    rank: int = 0,
    *,
    world_size: int = 2,
    project: str = "project",
    name: str | None = None,
    tags: Sequence[str] = (),
    config: str = "{}",
    started_at: float = STARTED_AT,
    every: int = 1,
) -> Hello:
    scaler = ScalerSettings(
        name="GradScaler",
        enabled=True,
        scale=65536.0,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
    )
    return Hello(
        protocol=PROTOCOL,
        run=run,
        segment=segment,
        rank=rank,
        world_size=world_size,
        started_at=started_at,
        project=project,
        name=name,
        tags=list(tags),
        config=config,
        environment={"torch": "2.13.0"},
        scaler=scaler,
        optimizers=[],
        every=every,
    )


def batch(caller: Hello, *records: Record, at: float = STARTED_AT) -> Batch:
    return Batch(caller, records, at, 100 * len(records))


@dataclass
class Dictation:
    """Numbers the records of one caller as its link would."""

    sequence: int = field(default=0)

    def layout(
        self,
        *parameters: tuple[str, str | None],
        backward: Sequence[int] = (),
        modules: Sequence[str] = (),
        parts: Sequence[Part] = (),
    ) -> Layout:
        """Parameters of 8 elements by name and compute format, and modules by name."""
        return Layout(
            sequence=self._next(),
            parameters=[Parameter(name, "module", [2, 4], "float32", 8, known) for name, known in parameters],
            order="observed",
            backward=list(backward),
            modules=[Module(name, "Linear") for name in modules],
            parts=list(parts),
        )

    def steps(self, first: int, count: int, *windows: tuple[int, object], **columns: Values) -> Steps:
        """``columns``: a value for each update, or values by update, counted from ``first``.

        ``windows``: so many updates with these facts.
        """
        return Steps(
            sequence=self._next(),
            first=first,
            count=count,
            at=np.arange(first, first + count, dtype="<f8").tobytes(),
            columns={name: column(*_rows(values)) for name, values in columns.items()},
            windows=[Window(alike, json.dumps(facts)) for alike, facts in windows],
        )

    def tally(
        self,
        step: int,
        *,
        subject: Subject = "parameter",
        reason: SampleReason = "periodic",
        scale: float | None = 65536.0,
        indexes: Sequence[int] | None = None,
        **columns: Sequence[float],
    ) -> Tally:
        return Tally(
            sequence=self._next(),
            step=step,
            at=float(step),
            subject=subject,
            reason=reason,
            scale=scale,
            indexes=_indexes(indexes),
            columns=_float64(columns),
        )

    def probe(
        self, step: int, data: object = None, *, indexes: Sequence[int] | None = None, **columns: Sequence[float]
    ) -> Probe:
        return Probe(
            sequence=self._next(),
            step=step,
            at=float(step),
            data=json.dumps(data or {}),
            indexes=_indexes(indexes),
            columns=_float64(columns),
        )

    def setup(self, step: int, **facts: object) -> Setup:
        return Setup(sequence=self._next(), step=step, at=float(step), data=json.dumps(facts))

    def sample(
        self,
        step: int,
        table: Histograms,
        *,
        scale: float | None = 65536.0,
        reason: SampleReason = "periodic",
        kind: SampleKind = "grad",
        parameters: Sequence[int] | None = None,
    ) -> Sample:
        return Sample(
            sequence=self._next(),
            step=step,
            at=float(step),
            kind=kind,
            reason=reason,
            scale=scale,
            micro_batches=1,
            parameters=_indexes(parameters),
            table=pack(table),
        )

    def event(self, step: int, kind: EventKind = "skip", data: str = "{}") -> Event:
        return Event(sequence=self._next(), step=step, at=float(step), kind=kind, data=data)

    def bye(self, reason: ByeReason = "finished", detail: str = "") -> Bye:
        return Bye(sequence=self._next(), at=STARTED_AT + 1, reason=reason, detail=detail)

    def _next(self) -> int:
        self.sequence += 1
        return self.sequence - 1


def histograms(*exponents: Sequence[int], zero: int = 0, inf: int = 0, nan: int = 0) -> Histograms:
    """One row for each list: a value ``2**e`` for each of its exponents, and so many of the other classes."""
    table = Histograms.empty(len(exponents))
    for row, listed in enumerate(exponents):
        for exponent in listed:
            table.counts[row, exponent - MIN_EXPONENT] += 1
            table.sum_squares[row] += 4.0**exponent
            table.amax[row] = max(table.amax[row], 2.0**exponent)
    table.zero[:], table.inf[:], table.nan[:] = zero, inf, nan
    return table


def same(found: Histograms, expected: Histograms) -> bool:
    names = ("counts", "zero", "inf", "nan", "amax", "sum_squares")
    return all(np.array_equal(getattr(found, name), getattr(expected, name)) for name in names)


def _indexes(indexes: Sequence[int] | None) -> bytes:
    return b"" if indexes is None else np.array(indexes, "<i4").tobytes()


def _float64(columns: Mapping[str, Sequence[float]]) -> dict[str, bytes]:
    return {name: np.array(values, "<f8").tobytes() for name, values in columns.items()}


def _rows(values: Values) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    pairs = sorted(values.items()) if isinstance(values, Mapping) else list(enumerate(values))
    return np.array([row for row, _ in pairs], np.int64), np.array([value for _, value in pairs], np.float64)
