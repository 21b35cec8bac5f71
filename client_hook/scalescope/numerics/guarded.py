"""How many values of each gradient are not finite, counted only where the scaler found that some are.

A fused optimizer skips inside its kernel, so the host does not know that it did; measuring every update would cost a
read of all gradients. Here the device itself looks at ``found_inf``: on an ordinary update it reads that one number
and nothing else, and the host launches a kernel and copies a few words back, without a wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from scalescope.numerics.exponents import Counts
from scalescope.numerics.launches import TILE, Launches, compile_elsewhere
from scalescope.numerics.paths import Faster, Path
from scalescope.numerics.pool import Lease, Pool
from scalescope.numerics.tables import KINDS, Table, table_of

# Most updates are ordinary: a few programs that find nothing to do are enough of them.
_PROGRAMS = 1024
# An update's words are few: this is thousands of updates that nobody has read.
_MOST_BYTES = 8 << 20


class Guarded:
    """What one update's gradients were, on its way to the host."""

    def __init__(self, lease: Lease, rows: int) -> None:
        self._lease: Lease | None = lease
        self._rows = rows
        self._found = np.zeros(rows + 1, np.int64)

    def ready(self) -> bool:
        """Whether it has arrived. Asks, never waits."""
        return self._lease is None or self._lease.slot.arrived()

    def nonfinite(self) -> Counts | None:
        """int64 [tensors]: infinities and NaNs; None where the scaler found none. Only when :meth:`ready`."""
        if self._lease is not None:
            self._found = self._lease.slot.host[: self._rows + 1].numpy().copy()
            self._lease = None
        return self._found[:-1] if self._found[-1] else None


class GuardedCount:
    """Counts for one set of gradients after the other, on one CUDA device."""

    def __init__(
        self,
        device: torch.device,
        build: Callable[[torch.device], Launches] = compile_elsewhere,
        *,
        pool: Pool | None = None,
    ) -> None:
        self.faster = Faster("triton", lambda: build(device))
        self._device = device
        self._pool = pool or Pool(device, most_bytes=_MOST_BYTES)
        self._places: list[tuple[int, int, torch.dtype]] = []
        self._table: Table | None = None
        self._words: torch.Tensor | None = None

    @property
    def path(self) -> Path:
        """``triton``, or ``none``: nothing else can look at a number on the device and then decide."""
        return self.faster.path("none")

    def prepare(self, gradients: Sequence[torch.Tensor]) -> bool:
        """Say which gradients are meant, before every count: memory that was given back must not be read.

        Takes 0.2 us for each while they lie where they lay at the last call; else their table is made anew.

        Returns:
            Whether they can be counted: dense, of fp32, bf16, fp16 or float64, and the kernel is there. Where it is
            not yet, it is asked for.
        """
        self.faster.ask()
        if self.faster.reason:
            return False
        places = [(found.data_ptr(), found.numel(), found.dtype) for found in gradients]
        if places != self._places:
            self._places, self._table = places, None
            if all(map(_is_dense, gradients)):
                self._table = table_of(gradients, TILE, programs=_PROGRAMS)
                self._words = self._uploaded(self._table.words)
        return self._table is not None

    def count_if(self, found_inf: torch.Tensor) -> Guarded | None:
        """Count if ``found_inf``, one fp32 on the device, is above 0 at this point of the device's stream.

        Returns:
            None where nothing is prepared, the kernel failed, or too many counts have not been read.
        """
        table, words = self._table, self._words
        lease = None if table is None else self._pool.take(table.rows + 1)
        if table is None or words is None or lease is None:
            return None
        slot = lease.slot
        out = slot.device[: table.rows + 1].zero_()
        launched = self.faster.attempt(lambda launches: _launched(launches, found_inf, words, table, out))
        if not launched:
            return None
        slot.fetch(0, table.rows + 1)
        return Guarded(lease, table.rows)

    def _uploaded(self, words: NDArray[np.int64]) -> torch.Tensor:
        host = torch.from_numpy(words)
        # torch keeps pinned memory until the copy is done.
        return (host.pin_memory() if self._device.type == "cuda" else host).to(self._device, non_blocking=True)


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
