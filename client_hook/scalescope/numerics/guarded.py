"""How many values of each gradient are not finite, counted only where the scaler found that some are.

A fused optimizer skips inside its kernel, so the host does not know that it did; measuring every update would cost a
read of all gradients. Here the device itself looks at ``found_inf``: on an ordinary update it reads that one number
and nothing else, and the host launches a kernel and copies a few words back, without a wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import numpy as np
import torch
from numpy.typing import NDArray

from scalescope.numerics.exponents import Counts
from scalescope.numerics.launches import TILE, Launches
from scalescope.numerics.paths import Faster, Path
from scalescope.numerics.pool import Lease, Pool
from scalescope.numerics.tables import KINDS, Table, table_of

# Most updates are ordinary: a few programs that find nothing to do are enough of them.
_PROGRAMS = 1024
# An update's words are few: this is thousands of updates that nobody has read.
_MOST_BYTES = 8 << 20

# In C: a call in Python for each gradient would take ten times as long.
_ADDRESS, _BYTES = torch.Tensor.data_ptr, attrgetter("nbytes")


class Guarded:
    """What one update's gradients were, on its way to the host."""

    def __init__(self, lease: Lease, rows: int) -> None:
        self._lease: Lease | None = lease
        self._rows = rows
        self._found = np.zeros(1 + rows, np.int64)

    def ready(self) -> bool:
        """Whether it has arrived. Asks, never waits."""
        lease = self._lease
        return lease is None or lease.slot.arrived()

    def nonfinite(self) -> Counts | None:
        """int64 [tensors]: infinities and NaNs; None where the scaler found none. Only when :meth:`ready`."""
        if self._lease is not None:
            self._found = self._lease.slot.host[: 1 + self._rows].numpy().copy()
            self._lease = None
        return self._found[1:] if self._found[0] else None


class GuardedCount:
    """Counts for one set of gradients after the other, on one CUDA device.

    ``faster`` are the kernels of that device, ``pool`` its memory for counts on their way.
    """

    def __init__(self, device: torch.device, faster: Faster[Launches], *, pool: Pool | None = None) -> None:
        self._faster = faster
        self._device = device
        self._pool = pool or counts_pool(device)
        self._places: tuple[list[int], list[int]] = [], []
        self._kinds: list[torch.dtype] = []
        self._table: Table | None = None
        self._words: torch.Tensor | None = None

    @property
    def path(self) -> Path:
        """``triton``, or ``none``: nothing else can look at a number on the device and then decide."""
        return self._faster.path("none")

    def prepare(self, gradients: Sequence[torch.Tensor]) -> bool:
        """Say which gradients are meant, before every count: memory that was given back must not be read.

        Takes 0.1 us for each while they lie where they lay at the last call, a few times that where they moved.

        Returns:
            Whether they can be counted: dense, of fp32, bf16, fp16 or float64, and the kernel is there. Where it is
            not yet, it is asked for.
        """
        self._faster.ask()
        if self._faster.reason:
            return False
        places = self._placed(gradients)
        if places is None or places != self._places:
            before, self._places = self._places, places or ([], [])
            kinds_before, self._kinds = self._kinds, [found.dtype for found in gradients]
            countable = places is not None and all(map(_is_dense, gradients))
            if not countable:
                self._table = None
            elif self._table is None or before[1] != self._places[1] or kinds_before != self._kinds:
                self._table = table_of(gradients, TILE, programs=_PROGRAMS)
                self._words = self._uploaded(self._table.words)
            else:
                self._move()
        return self._table is not None

    def count_if(self, found_inf: torch.Tensor) -> Guarded | None:
        """Count if ``found_inf``, one fp32 on the device, is above 0 at this point of the device's stream.

        Returns:
            None where nothing is prepared, the kernel failed, or too many counts have not been read.
        """
        table, words = self._table, self._words
        lease = None if table is None else self._pool.take(1 + table.rows)
        if table is None or words is None or lease is None:
            return None
        slot = lease.slot
        if slot.host[0]:
            # Written to when it was used last: ordinary updates leave it as it was.
            slot.device.zero_()
        out = slot.device[: 1 + table.rows]
        if not self._faster.attempt(lambda launches: _launched(launches, found_inf, words, table, out)):
            return None
        slot.fetch(0, 1 + table.rows)
        return Guarded(lease, table.rows)

    def _placed(self, gradients: Sequence[torch.Tensor]) -> tuple[list[int], list[int]] | None:
        """Where they lie and how far they reach; None where one has no such place."""
        try:
            return list(map(_ADDRESS, gradients)), list(map(_BYTES, gradients))
        except RuntimeError:
            # A sparse one.
            return None

    def _move(self) -> None:
        """Gradients of the same lengths lie elsewhere: the table begins with their addresses."""
        assert self._words is not None
        addresses = np.array(self._places[0], np.int64)
        # What was launched before has read the old ones by then: it is on the same stream.
        self._words[: len(addresses)].copy_(self._uploaded(addresses))

    def _uploaded(self, words: NDArray[np.int64]) -> torch.Tensor:
        host = torch.from_numpy(words)
        # torch keeps pinned memory until the copy is done.
        return (host.pin_memory() if self._device.type == "cuda" else host).to(self._device, non_blocking=True)


def counts_pool(device: torch.device) -> Pool:
    """Memory for the counts of all optimizers on ``device``."""
    return Pool(device, most_bytes=_MOST_BYTES)


def _launched(
    launches: Launches, found_inf: torch.Tensor, words: torch.Tensor, table: Table, out: torch.Tensor
) -> bool:
    launches.count_if(found_inf.detach(), words, table, out)
    return True


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its values lie side by side in memory, in whatever order."""
    if tensor.layout is not torch.strided or tensor.dtype not in KINDS:
        return False
    return tensor.is_contiguous() or tensor.permute(_by_stride(tensor)).is_contiguous()


def _by_stride(tensor: torch.Tensor) -> list[int]:
    return sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
