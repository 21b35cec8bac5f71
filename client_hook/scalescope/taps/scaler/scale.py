"""A number of the scaler's, read anew only where it may have changed.

On the CPU that is asked of the number itself, where it lies: to ask torch for anything takes ten times as long.
Elsewhere a tensor counts its versions up with every change in place, so that a scale at rest is read once and costs
two comparisons from then on: at each call of ``scale()``, before ``update()`` and after it.
"""

from __future__ import annotations

import torch
from torch.amp import GradScaler

from scalescope.readback import Value, read_later


class Reader:
    """Reads one tensor of a scaler by its attribute: the public getters make the host wait for the device."""

    def __init__(self, attribute: str) -> None:
        self.value: Value | None = None
        self._attribute = attribute
        # What was read; where its number lies, on the CPU; elsewhere at which of its versions it was.
        self.tensor: torch.Tensor | None = None
        self.memory: memoryview | None = None
        self.version = -1

    def is_current(self, scaler: GradScaler) -> bool:
        """Whether :attr:`value` is what the scaler has now."""
        tensor: torch.Tensor | None = getattr(scaler, self._attribute, None)
        if tensor is None or tensor is not self.tensor:
            return False
        if self.memory is not None:
            return bool(self.memory[()] == self.value)
        # The counter that autograd itself goes by.
        return tensor._version == self.version  # noqa: SLF001

    def read(self, scaler: GradScaler) -> Value | None:
        """What the scaler has now; None before its first ``scale()``. As long as it is the same, the same object."""
        if getattr(scaler, self._attribute, None) is None:
            return None
        if not self.is_current(scaler):
            self.reread(scaler)
        return self.value

    def reread(self, scaler: GradScaler) -> bool:
        """Read it after ``update()``, which changes the growth tracker without counting; whether it is what it was."""
        tensor: torch.Tensor | None = getattr(scaler, self._attribute, None)
        if tensor is None:
            return True
        if tensor is not self.tensor:
            self.tensor, self.memory = tensor, _memory(tensor)
        if self.memory is None:
            value, self.version = read_later(tensor), tensor._version  # noqa: SLF001 - as above
        else:
            value = float(self.memory[()])
        if value == self.value:
            return True
        self.value = value
        return False

    def take(self, tensor: torch.Tensor, value: Value) -> None:
        """``value`` was read, with others, of ``tensor``: the scaler's as it is now, on a device."""
        self.tensor, self.memory = tensor, None
        self.value, self.version = value, tensor._version  # noqa: SLF001 - as above


def _memory(tensor: torch.Tensor) -> memoryview | None:
    """The number of ``tensor`` on the CPU as it is there, whatever changes it; None elsewhere."""
    # Of torch's own scaler; a memory of half precision cannot be looked into.
    kind = tensor.dtype in (torch.float32, torch.float64, torch.int32, torch.int64)
    plain = kind and tensor.is_cpu and type(tensor) is torch.Tensor and tensor.dim() == 0
    return tensor.detach().numpy().data if plain else None
