"""The gradients of an optimizer, measured where they stand."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch

from scalescope.numerics.measure import measure
from scalescope.taps.library.optimizer import LibraryOptimizer
from scalescope.taps.parameters import Parameters
from scalescope.updates import Measured


def measure_gradients(
    optimizer: torch.optim.Optimizer, parameters: Parameters, *, factor: float, known: Collection[int]
) -> list[Measured]:
    """Measure what this rank reports of the gradients of ``optimizer``, one measurement for each device.

    Args:
        factor: what the gradients are multiplied by: the loss scale once they have been divided by it, else 1.
        known: indexes that this update has measured already, through another optimizer.
    """
    found: dict[torch.device, dict[int, torch.Tensor]] = {}
    shares = parameters.shares
    for parameter, gradient in _gradients(optimizer):
        index = parameters.index(parameter)
        if index is not None and index not in known:
            shares.heed(index, gradient)
            if shares.reports(index):
                shard = local(gradient)
                found.setdefault(shard.device, {})[index] = shard
    measured = [
        Measured(tuple(gradients), measure(list(gradients.values()), factor=factor)) for gradients in found.values()
    ]
    return [part for part in measured if not part.measurement.refused]


def unknown_parameters(optimizer: torch.optim.Optimizer, parameters: Parameters) -> bool:
    """Whether the optimizer holds a parameter with a gradient that has no index yet."""
    return any(parameters.index(parameter) is None for parameter, _ in _gradients(optimizer))


def has_gradient(optimizer: torch.optim.Optimizer, identities: Collection[int]) -> bool:
    """Whether a gradient of ``optimizer`` is among those with these ``id``."""
    return any(id(gradient) in identities for _, gradient in _gradients(optimizer))


def local(gradient: torch.Tensor) -> torch.Tensor:
    """The local shard of a sharded gradient (a DTensor), any other gradient itself: no collective to look at."""
    # The usual one first: this runs in every backward, and a tensor takes long to say what it has not.
    if type(gradient) is torch.Tensor:
        return gradient
    to_local = getattr(gradient, "to_local", None)
    return gradient if to_local is None else to_local()


def _gradients(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if isinstance(optimizer, LibraryOptimizer):
        yield from optimizer.source()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                yield parameter, parameter.grad
