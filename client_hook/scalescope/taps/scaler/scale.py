"""A number of the scaler's, read anew only where it may have changed.

A tensor counts its versions up with every change in place, so that a scale at rest is read once and costs two
comparisons from then on: at each call of ``scale()``, before ``update()`` and after it.
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
        # What was read, at which of its versions.
        self.tensor: torch.Tensor | None = None
        self.version = -1

    def is_current(self, scaler: GradScaler) -> bool:
        """Whether :attr:`value` is what the scaler has now."""
        tensor: torch.Tensor | None = getattr(scaler, self._attribute, None)
        # The counter that autograd itself goes by.
        return tensor is not None and tensor is self.tensor and tensor._version == self.version  # noqa: SLF001

    def read(self, scaler: GradScaler, *, anew: bool = False) -> Value | None:
        """What the scaler has now; None before its first ``scale()``. As long as it is the same, the same object.

        ``anew``: after ``update()``, which changes the growth tracker without counting.
        """
        tensor: torch.Tensor | None = getattr(scaler, self._attribute, None)
        if tensor is None:
            return None
        version = tensor._version  # noqa: SLF001 - as above
        if not anew and tensor is self.tensor and version == self.version:
            return self.value
        self.tensor, self.version = tensor, version
        value = read_later(tensor)
        if value != self.value:
            self.value = value
        return self.value
