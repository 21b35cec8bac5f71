"""What one of several ranks keeps of each gradient, as DeepSpeed divides them: whole, in partitions, or in parts."""

from __future__ import annotations

import math

import torch

from scalescope.integrations.deepspeed_gradients import Theirs, elements, parameters
from scalescope.taps.ranks.wrappers import Held
from scalescope.wire import Part


def shares(optimizer: Theirs) -> dict[int, Held]:
    """Of every parameter of the model that is told of, by its ``id``."""
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):
        return {id(parameter): _in_parts(parameter) for parameter in parameters(optimizer)}
    if hasattr(optimizer, "grad_start_offset"):
        return {
            id(parameter): _in_partition(optimizer, number, parameter)
            for number, group in enumerate(optimizer.bit16_groups)
            for parameter in group
        }
    # Among ranks that each have another piece of the model, none knows here who has the same.
    if getattr(optimizer, "mpu", None) is not None or not torch.distributed.is_initialized():
        return {}
    first = torch.distributed.get_rank() == 0
    return {id(parameter): _whole(parameter, first=first) for parameter in parameters(optimizer)}


def _whole(parameter: torch.Tensor, *, first: bool) -> Held:
    return Held(tuple(parameter.shape), Part("replicated", parameter.numel() if first else 0, first))


def _in_partition(optimizer: Theirs, number: int, parameter: torch.Tensor) -> Held:
    """Stage 1 and 2: where this rank's partition of a group begins in the parameter, and where that in it."""
    rank, key = torch.distributed.get_rank(optimizer.real_dp_process_group[number]), optimizer.get_param_id(parameter)
    start = optimizer.grad_start_offset[number][rank].get(key)
    shape = tuple(parameter.shape)
    if start is None:
        return Held(shape, Part("sharded", 0, leads=False))
    room = optimizer.partition_size[number] - optimizer.grad_partition_insertion_offset[number][rank][key]
    return Held(shape, Part("sharded", int(min(parameter.numel() - start, room)), int(start) == 0))


def _in_parts(parameter: Theirs) -> Held:
    """Stage 3, where a parameter that is not in use has no elements of its own."""
    shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
    kept = getattr(parameter, "ds_tensor", None)
    length = math.prod(shape) if kept is None else kept.numel()
    ranks = getattr(parameter, "ds_process_group", None)
    first = ranks is None or torch.distributed.get_rank(ranks) == 0
    return Held(shape, Part("sharded", elements(parameter, length), first))
