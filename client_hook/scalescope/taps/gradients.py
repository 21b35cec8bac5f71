"""The gradients of an optimizer, measured where they stand."""

from __future__ import annotations

from collections.abc import Collection

import torch

from scalescope.numerics.measure import measure
from scalescope.taps.parameters import Parameters
from scalescope.updates import Measured


def measure_gradients(
    optimizer: torch.optim.Optimizer, parameters: Parameters, *, factor: float, known: Collection[int]
) -> list[Measured]:
    """Measure every gradient of ``optimizer`` whose parameter is watched, one measurement for each device.

    Args:
        factor: what the gradients are multiplied by: the loss scale once they have been divided by it, else 1.
        known: indexes that this update has measured already, through another optimizer.
    """
    found: dict[torch.device, dict[int, torch.Tensor]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient, index = parameter.grad, parameters.index(parameter)
            if gradient is not None and index is not None and index not in known:
                local = _local(gradient)
                found.setdefault(local.device, {})[index] = local
    return [
        Measured(tuple(gradients), measure(list(gradients.values()), factor=factor)) for gradients in found.values()
    ]


def unknown_parameters(optimizer: torch.optim.Optimizer, parameters: Parameters) -> bool:
    """Whether the optimizer holds a parameter with a gradient that has no index yet."""
    return any(
        parameter.grad is not None and parameters.index(parameter) is None
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def _local(gradient: torch.Tensor) -> torch.Tensor:
    """The local shard of a sharded gradient (a DTensor), any other gradient itself."""
    to_local = getattr(gradient, "to_local", None)
    return gradient if to_local is None else to_local()
