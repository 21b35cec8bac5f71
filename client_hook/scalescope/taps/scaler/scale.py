"""The loss scale, read anew only where it may have changed.

A tensor counts its versions up with every change in place, so that a scale at rest is read once and costs two
comparisons from then on: at each call of ``scale()``, before ``update()`` and after it.
"""

from __future__ import annotations

import torch
from torch.amp import GradScaler

from scalescope.readback import Value, read_later


class ScaleReader:
    """Reads the scale of one scaler, through its attribute: its public getter makes the host wait for the device."""

    def __init__(self) -> None:
        self._tensor: torch.Tensor | None = None
        self._version = -1
        self._value: Value | None = None

    def read(self, scaler: GradScaler) -> Value | None:
        """The scale in force; None before the first ``scale()``, when a scaler has none yet."""
        tensor: torch.Tensor | None = getattr(scaler, "_scale", None)
        if tensor is None:
            return None
        version = tensor._version  # noqa: SLF001 - the counter that autograd itself goes by
        if tensor is not self._tensor or version != self._version:
            self._tensor, self._version, self._value = tensor, version, read_later(tensor)
        return self._value
