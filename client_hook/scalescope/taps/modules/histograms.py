"""Exponent histograms of more than gradients, on request: of weights, and of what modules answer and get back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch

from scalescope.numerics.exponents import Histograms
from scalescope.numerics.measure import measure
from scalescope.packing import pack
from scalescope.readback import number
from scalescope.taps.backward.gradients import local
from scalescope.taps.modules.heard import Where
from scalescope.taps.modules.sample import heard_because
from scalescope.taps.parameters import Parameters
from scalescope.updates import ROW_BYTES, Measured, Update
from scalescope.wire import Record, Sample, SampleKind

# What may be asked for.
KINDS: tuple[SampleKind, ...] = ("weight", "forward", "grad_output")
# Measurements of modules that one update keeps, 2 KB each: a module that is called a thousand times stays bounded.
_MAX_MEASUREMENTS = 4096
_KIND: dict[Where, SampleKind] = {"forward": "forward", "backward": "grad_output"}


class HistogramSample:
    """An extra of an update: histograms of one kind, those of one index added up when they are here.

    ``dense``: as :func:`heard_because` wants it.
    """

    def __init__(self, kind: SampleKind, measured: Sequence[Measured], *, dense: bool) -> None:
        self._kind = kind
        self._measured = measured
        self._dense = dense

    @property
    def nbytes(self) -> int:
        return ROW_BYTES * sum(len(part.indexes) for part in self._measured)

    def ready(self) -> bool:
        return all(part.measurement.ready() for part in self._measured)

    def records(self, update: Update) -> list[Record]:
        rows = _folded(self._measured)
        return [
            Sample(
                sequence=0,
                step=update.step,
                at=update.at,
                kind=self._kind,
                reason=heard_because(update, dense=self._dense),
                # Only what comes back through the loss is scaled.
                scale=None if update.scale is None or self._kind != "grad_output" else number(update.scale),
                micro_batches=None,
                parameters=np.asarray(list(rows), "<i4").tobytes(),
                table=pack(Histograms.stack(list(rows.values()))),
            )
        ]


class ModuleHistograms:
    """Those of the modules of one update after the other, of the ``kinds`` that were asked for."""

    def __init__(self, kinds: Collection[str]) -> None:
        self._kinds = kinds
        self._measured: dict[SampleKind, list[Measured]] = {}
        self._count = 0

    def add(self, where: Where, module: int, values: torch.Tensor) -> None:
        kind = _KIND[where]
        if kind in self._kinds and self._count < _MAX_MEASUREMENTS and values.numel():
            self._count += 1
            measurement = measure([values])
            if not measurement.refused:
                self._measured.setdefault(kind, []).append(Measured((module,), measurement))

    def take(self, *, dense: bool) -> list[HistogramSample]:
        """What was added since the last call."""
        taken, self._measured, self._count = self._measured, {}, 0
        return [HistogramSample(kind, measured, dense=dense) for kind, measured in taken.items()]


class WeightHistograms:
    """A watcher: the weights as a sampled update left them."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters

    def closing(self, update: Update) -> None:
        if update.measured:
            reports = self._parameters.shares.reports
            held = enumerate(self._parameters.tensors)
            found = _by_device({index: tensor for index, tensor in held if reports(index)})
            # Nothing listens for weights: they are told for the reason that the update itself has.
            update.extras = [*update.extras, HistogramSample("weight", found, dense=True)]

    def remove(self) -> None:
        """Nothing hangs anywhere."""


def _by_device(tensors: Mapping[int, torch.Tensor]) -> list[Measured]:
    found: dict[torch.device, dict[int, torch.Tensor]] = {}
    for index, tensor in tensors.items():
        shard = local(tensor.detach())
        found.setdefault(shard.device, {})[index] = shard
    measured = [Measured(tuple(shards), measure(list(shards.values()))) for shards in found.values()]
    return [part for part in measured if not part.measurement.refused]


def _folded(measured: Sequence[Measured]) -> dict[int, Histograms]:
    """Index -> its one row."""
    rows: dict[int, Histograms] = {}
    for part in measured:
        table = part.measurement.result()
        for row, index in enumerate(part.indexes):
            one = table.take([row])
            rows[index] = rows[index].merge(one) if index in rows else one
    return rows
