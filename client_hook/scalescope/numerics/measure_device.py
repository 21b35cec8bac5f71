"""Measuring on a device: by the Triton kernels once they are there, by torch's own until then and otherwise.

Neither makes the host wait: what is found stays on the device, is copied once, and an event says when it has arrived.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from scalescope.numerics.fields import FIELDS, fields_into
from scalescope.numerics.launches import ROW, TILE, Launches, compile_elsewhere
from scalescope.numerics.measure_cpu import Raw, prepared
from scalescope.numerics.measure_host import WORTH
from scalescope.numerics.paths import Faster, Path
from scalescope.numerics.pool import Lease, Pool
from scalescope.numerics.tables import Table, table_of

# Elements that torch counts at once: bounds the int64 bins that scatter_add wants (32 MB).
_CHUNK = 1 << 22


class Arriving:
    """Statistics on their way to the host; says itself, as events do, whether they have arrived."""

    def __init__(self, lease: Lease, table: Table) -> None:
        self._lease: Lease | None = lease
        self._table = table
        self._raw: Raw | None = None

    def query(self) -> bool:
        lease = self._lease
        # The slot that was given back may be another one's by now.
        return lease is None or lease.slot.arrived()

    def read(self) -> Raw:
        """Only when they have. The first read gives the memory back."""
        lease = self._lease
        if lease is not None:
            start = len(self._table.words)
            flat = lease.slot.host[start : start + self._table.rows * ROW].numpy()
            self._raw = raw_of(flat.reshape(-1, ROW))
            self._lease = None
        assert self._raw is not None
        return self._raw


class DeviceMeasuring:
    """How tensors of one device are measured."""

    def __init__(
        self,
        device: torch.device,
        build: Callable[[torch.device], Launches] = compile_elsewhere,
        *,
        pool: Pool | None = None,
        worth: int = WORTH,
    ) -> None:
        self.faster = Faster("triton", lambda: build(device))
        self.pool = pool or Pool(device)
        self._worth = worth

    @property
    def path(self) -> Path:
        return self.faster.path("torch-device")

    def measure(self, values: Sequence[torch.Tensor], factor: float) -> Arriving | None:
        """Every statistic of ``values`` times ``factor``: flat tensors of fp32, bf16, fp16 or float64.

        Returns:
            None where too many measurements are on their way already.
        """
        flat = [found.contiguous() for found in values]
        table = table_of(flat, TILE)
        lease = self.pool.take(len(table.words) + table.rows * ROW)
        if lease is None:
            return None
        words, out = lease.slot.put(table.words, table.rows * ROW)
        if not self._launched(words, table, factor, out):
            measure_into(out.zero_().view(-1, ROW), flat, factor)
            self._ask(flat)
        lease.slot.fetch(len(words), len(words) + len(out))
        return Arriving(lease, table)

    def _launched(self, words: torch.Tensor, table: Table, factor: float, out: torch.Tensor) -> bool:
        def launch(launches: Launches) -> bool:
            launches.measure(words, table, factor, out)
            return True

        return bool(self.faster.attempt(launch))

    def _ask(self, values: Sequence[torch.Tensor]) -> None:
        if sum(found.numel() for found in values) >= self._worth:
            self.faster.ask()


def measure_into(out: torch.Tensor, values: Sequence[torch.Tensor], factor: float) -> None:
    """The same by torch's own kernels, to ``out``: int64 [rows, ROW], zeros.

    Values are counted by scatter_add: bincount would ask the device how large its result is.
    """
    real = out[:, FIELDS + 1 : FIELDS + 3].view(torch.float64)
    for first, parts in _batches(values):
        joined = prepared(torch.cat(parts) if len(parts) > 1 else parts[0], factor)
        lengths = [part.numel() for part in parts]
        rows = slice(first, first + len(parts))
        _count(out[rows], joined, lengths)
        magnitude = joined.abs()
        finite = torch.where(magnitude < math.inf, magnitude, magnitude.new_zeros(()))
        # Ones are counted exactly, a batch has less than 2**24.
        infinite = (magnitude >= 2.0**128).float().split(lengths)
        out[rows, FIELDS] += torch.stack(torch._foreach_norm(infinite, 1)).long()
        amax = torch.stack(torch._foreach_norm(finite.split(lengths), math.inf)).double()
        real[rows, 0] = torch.maximum(real[rows, 0], amax)
        norms = torch._foreach_norm(finite.split(lengths), 2, dtype=torch.float64)
        real[rows, 1] += torch.stack(norms).square_()


def _batches(values: Sequence[torch.Tensor]) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """Neighbours of one dtype, none empty, at most a chunk together: the row of the first of them, and they."""
    first, parts, left = 0, list[torch.Tensor](), 0
    for row, found in enumerate(values):
        for part in found.split(_CHUNK) if found.numel() else ():
            if parts and (row != first + len(parts) or part.numel() > left or part.dtype != parts[0].dtype):
                yield first, parts
                parts = []
            if not parts:
                first, left = row, _CHUNK
            parts.append(part)
            left -= part.numel()
    if parts:
        yield first, parts


def _count(out: torch.Tensor, joined: torch.Tensor, lengths: list[int]) -> None:
    size, device = len(joined), joined.device
    wide = torch.empty(size, dtype=torch.int32, device=device)
    bins = fields_into(joined, wide, torch.empty(size, dtype=torch.uint8, device=device)).long()
    one = torch.ones((), dtype=torch.int64, device=device)
    for row, part in enumerate(bins.split(lengths)):
        out[row].scatter_add_(0, part, one.expand(part.shape))


def raw_of(found: NDArray[np.int64]) -> Raw:
    """From int64 [rows, ROW]."""
    real = found[:, FIELDS + 1 : FIELDS + 3].copy().view(np.float64)
    return Raw(found[:, :FIELDS].copy(), found[:, FIELDS].copy(), real[:, 0].copy(), real[:, 1].copy())
