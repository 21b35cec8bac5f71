"""Memory on a device and pinned memory on the host for what is measured there: made once, lent, given back.

A measurement borrows as much as it needs until somebody has read it. What is lent is bounded: where nobody reads, as
when the link hangs, no sample is taken rather than more memory.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray

from scalescope.numerics.transfer import Arrival

# Of each kind, for one device. A measurement of 1,500 tensors takes 4 MB.
_MOST_BYTES = 64 << 20
# The smallest that is lent: one tensor, in words of eight bytes.
_LEAST_WORDS = 1 << 10


class Slot:
    """Words on a device and as many on the host, with the event that says when the last copy has arrived."""

    def __init__(self, words: int, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self.device = torch.zeros(words, dtype=torch.int64, device=device)
        # The device is named: the training may have made another one the default.
        self.host = torch.zeros(words, dtype=torch.int64, device="cpu", pin_memory=is_cuda)
        self.event: Arrival | None = torch.cuda.Event() if is_cuda else None

    def put(self, words: NDArray[np.int64], results: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the device's memory: ``words``, on their way there, and ``results`` zeros after them."""
        start, end = len(words), len(words) + results
        self.host[:start].copy_(torch.from_numpy(words))
        self.device[:start].copy_(self.host[:start], non_blocking=True)
        return self.device[:start], self.device[start:end].zero_()

    def fetch(self, start: int, end: int) -> None:
        """Let the host have these words as they stand at this point of the device's stream."""
        self.host[start:end].copy_(self.device[start:end], non_blocking=True)
        if isinstance(self.event, torch.cuda.Event):
            self.event.record(torch.cuda.current_stream(self.device.device))

    def arrived(self) -> bool:
        return self.event is None or self.event.query()


class Lease:
    """A slot until it is dropped."""

    __slots__ = ("__weakref__", "slot")

    def __init__(self, slot: Slot) -> None:
        self.slot = slot


class Pool:
    """The slots of one device. Taken in the training thread, given back in any.

    Attributes:
        refused: how often there was none.
    """

    def __init__(self, device: torch.device, *, most_bytes: int = _MOST_BYTES) -> None:
        self.refused = 0
        self._device = device
        self._left = most_bytes // 8
        # By their size. What was given back first is at the front, and most likely to have arrived.
        self._free: dict[int, deque[Slot]] = {}

    def take(self, words: int) -> Lease | None:
        """A slot of at least ``words`` words; None where none is left. Never waits."""
        size = max(_LEAST_WORDS, 1 << (words - 1).bit_length())
        slot = self._reused(size) or self._made(size)
        if slot is None:
            self.refused += 1
            return None
        lease = Lease(slot)
        weakref.finalize(lease, self._free.setdefault(size, deque()).append, slot).atexit = False
        return lease

    def _reused(self, size: int) -> Slot | None:
        free = self._free.get(size)
        if not free:
            return None
        slot = free.popleft()
        if slot.arrived():
            return slot
        # Given back unread while its copy was still under way.
        free.append(slot)
        return None

    def _made(self, size: int) -> Slot | None:
        if size > self._left:
            return None
        self._left -= size
        return Slot(size, self._device)
