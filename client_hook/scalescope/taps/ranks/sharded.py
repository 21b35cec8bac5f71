"""What this rank holds of a DTensor: its local shard, of a whole that is laid out over a mesh of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeGuard

import torch

from scalescope.wire import Part


class Placement(Protocol):
    """How a tensor is laid out over one dimension of a mesh."""

    def is_replicate(self) -> bool: ...

    def is_partial(self) -> bool: ...


class Mesh(Protocol):
    """Ranks in rows and columns; asking it for this rank's place sends nothing."""

    def get_coordinate(self) -> Sequence[int] | None: ...


class DistributedTensor(Protocol):
    """What is used of ``torch.distributed.tensor.DTensor``."""

    @property
    def placements(self) -> Sequence[Placement]: ...

    @property
    def device_mesh(self) -> Mesh: ...

    def to_local(self) -> torch.Tensor: ...


def is_distributed(tensor: object) -> TypeGuard[DistributedTensor]:
    # The usual ones first: a tensor takes long to say what it has not.
    return type(tensor) not in (torch.Tensor, torch.nn.Parameter) and hasattr(tensor, "placements")


def part_of(tensor: DistributedTensor) -> Part:
    """Where a dimension of the mesh holds replicas, the first of them reports.

    A tensor whose sum over ranks was not taken yet is ``local``: what this rank holds of it is a summand.
    """
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return Part("sharded", 0, leads=False)
    with torch.no_grad():
        elements = tensor.to_local().numel()
    if any(placement.is_partial() for placement in tensor.placements):
        return Part("local", elements, leads=True)
    replicas = [
        place for place, placement in zip(coordinate, tensor.placements, strict=True) if placement.is_replicate()
    ]
    whole = len(replicas) == len(coordinate)
    return Part("replicated" if whole else "sharded", 0 if any(replicas) else elements, leads=not any(coordinate))
