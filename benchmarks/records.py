"""Records as a hook sends them, of a model of 148 parameters: updates with 20 numbers of the user, samples, tallies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.exponents import BINS, MIN_EXPONENT, Histograms
from scalescope.numerics.tallies import MODULE_TALLIES, PARAMETER_TALLIES
from scalescope.packing import PackedHistograms, pack
from scalescope.rows import column
from scalescope.wire import PROTOCOL, Event, Hello, Layout, Module, Parameter, Sample, ScalerSettings, Steps, Tally

from benchmarks.gradients import shapes

EVERY = 10
SCALE = 65536.0
USER_SCALARS = tuple(f"train/metric_{i:02d}" for i in range(20))
# What the records of a kind repeat: making each anew would take longer than storing it.
VARIETY = 16

SHAPES = shapes()
MODULES = tuple(dict.fromkeys(name.rpartition(".")[0] for name in SHAPES))


def hello(run: str, segment: str = "first") -> Hello:
    scaler = ScalerSettings(
        name="GradScaler", enabled=True, scale=SCALE, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
    )
    return Hello(
        protocol=PROTOCOL,
        run=run,
        segment=segment,
        rank=0,
        world_size=1,
        started_at=1_000.0,
        project="benchmark",
        name=run,
        tags=[],
        config="{}",
        environment={},
        scaler=scaler,
        optimizers=[],
        every=EVERY,
    )


class Dictation:
    """Records one after the other, numbered."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._numbers = itertools.count()
        self._tables = [self._table() for _ in range(VARIETY)]
        self._tallies = [_float64(PARAMETER_TALLIES, len(SHAPES), self._rng) for _ in range(VARIETY)]
        self._outputs = [_float64(MODULE_TALLIES, len(MODULES), self._rng) for _ in range(VARIETY)]

    def layout(self) -> Layout:
        parameters = [
            Parameter(name, name.rpartition(".")[0], list(shape), "float32", math.prod(shape), "fp16")
            for name, shape in SHAPES.items()
        ]
        modules = [Module(name, "Module") for name in MODULES]
        backward = list(range(len(parameters)))[::-1]
        sequence = next(self._numbers)
        return Layout(sequence=sequence, parameters=parameters, order="forward", backward=backward, modules=modules)

    def steps(self, first: int, count: int, names: Sequence[str] = USER_SCALARS, *, skipped: int = -1) -> Steps:
        """``count`` updates from ``first`` on: the user's ``names``, and what the hook tells of itself."""
        steps, every = np.arange(first, first + count), np.arange(count)
        columns = {name: self._rng.standard_normal(count) for name in names}
        columns |= {
            "scale": np.where((steps > skipped) & (skipped >= 0), SCALE / 2, SCALE),
            "skipped": (steps == skipped).astype(np.float64),
            "growth_tracker": (steps % 2000).astype(np.float64),
            "step_ms": 80 + 5 * self._rng.random(count),
        }
        return Steps(
            sequence=next(self._numbers),
            first=first,
            count=count,
            at=(1_000.0 + steps).astype("<f8").tobytes(),
            columns={name: column(every, values) for name, values in columns.items()},
        )

    def sample(self, step: int) -> Sample:
        table = self._tables[step // EVERY % VARIETY]
        return Sample(
            sequence=next(self._numbers),
            step=step,
            at=1_000.0 + step,
            kind="grad",
            reason="periodic",
            scale=SCALE,
            micro_batches=1,
            parameters=b"",
            table=table,
        )

    def tallies(self, step: int) -> Iterator[Tally]:
        """Of the parameters, and of the modules."""
        which = step // EVERY % VARIETY
        for subject, columns in (("parameter", self._tallies[which]), ("module", self._outputs[which])):
            yield Tally(
                sequence=next(self._numbers),
                step=step,
                at=1_000.0 + step,
                subject="parameter" if subject == "parameter" else "module",
                reason="periodic",
                scale=SCALE,
                indexes=b"",
                columns=columns,
            )

    def skip(self, step: int) -> Event:
        data = f'{{"scale": {SCALE}, "next_scale": {SCALE / 2}, "parameter": "h.3.attn.qkv.weight"}}'
        return Event(sequence=next(self._numbers), step=step, at=1_000.0 + step, kind="skip", data=data)

    def _table(self) -> PackedHistograms:
        """Gradients near a power of two of each tensor's own, some zero."""
        numel = np.array([math.prod(shape) for shape in SHAPES.values()])
        centres = self._rng.normal(-12, 2, (len(numel), 1))
        shares = np.exp(-0.5 * ((np.arange(MIN_EXPONENT, MIN_EXPONENT + BINS) - centres) / 5) ** 2)
        counts = np.floor(shares / shares.sum(axis=1, keepdims=True) * numel[:, None]).astype(np.int64)
        amax = np.exp2(np.array([float(np.flatnonzero(row)[-1]) for row in counts]) + MIN_EXPONENT)
        none, zero = np.zeros(len(numel), np.int64), numel - counts.sum(axis=1)
        return pack(Histograms(counts, zero, none, none, amax, amax**2 * self._rng.random(len(numel))))


def _float64(names: Collection[str], rows: int, rng: np.random.Generator) -> dict[str, bytes]:
    values: NDArray[np.float64] = rng.integers(1, 100_000, (len(names), rows)).astype("<f8")
    return {name: column.tobytes() for name, column in zip(names, values, strict=True)}
