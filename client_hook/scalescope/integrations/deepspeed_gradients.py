"""Where DeepSpeed's optimizers keep gradients when it is decided whether an update is skipped: scaled, not clipped.

Without ZeRO they are the parameters' own. ZeRO leaves to each rank its partition: of stage 1 and 2 consecutive
elements of a flat buffer of whole groups, so that the first and the last parameter of it may be in part; of stage 3
a part of every parameter. What is offloaded to the host is in no form that can be told apart by parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from scalescope.taps.library.optimizer import Gradient

BLIND = "DeepSpeed keeps the gradients where they cannot be told apart by parameter"

# An optimizer of DeepSpeed's, of whatever class.
Theirs = Any


def held(optimizer: Theirs) -> Iterator[Gradient]:
    """The parameters of the model, and of each the gradient, or this rank's part of it."""
    averaged = getattr(optimizer, "averaged_gradients", None)
    if isinstance(averaged, Mapping):
        partitions = getattr(optimizer, "params_in_partition", None)
        for number, gradients in averaged.items():
            if gradients is not None and partitions is not None:
                yield from _in_partition(partitions[number], gradients)
            elif gradients is not None:
                yield from _of_all(optimizer.fp16_groups[number], gradients)
    elif (kept := getattr(optimizer, "fp32_groups_gradients", None)) is not None:
        for group, gradients in zip(optimizer.bf16_groups, kept, strict=True):
            yield from zip(group, gradients, strict=True)
    else:
        for group in getattr(optimizer, "fp16_groups", ()):
            yield from ((parameter, parameter.grad) for parameter in group if parameter.grad is not None)


def parameters(optimizer: Theirs) -> list[torch.Tensor]:
    """The parameters of the model that it steps, of whatever part of them this rank has."""
    for name in ("fp16_groups", "bf16_groups", "bit16_groups"):
        groups = getattr(optimizer, name, None)
        if groups:
            return [parameter for group in groups for parameter in group]
    return []


def stays_with_parameters(optimizer: Theirs) -> bool:
    """Whether gradients are where torch puts them, from the first backward pass to the step."""
    return not hasattr(optimizer, "averaged_gradients") and not hasattr(optimizer, "fp32_groups_gradients")


def elements(parameter: Theirs, length: int) -> int:
    """How many of ``length`` elements of this rank's part, in stage 3, are the parameter's; the others are padding."""
    whole, ranks = getattr(parameter, "ds_numel", None), getattr(parameter, "ds_process_group", None)
    if whole is None or ranks is None:
        return length
    return max(0, min(length, int(whole) - torch.distributed.get_rank(ranks) * length))


def _in_partition(group: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> Iterator[Gradient]:
    """Stage 1 and 2: one gradient for each parameter of the partition, and what pads it."""
    own = [gradient for gradient in gradients if not getattr(gradient, "_zero_padding", False)]
    inner = zip(group[1:-1], own[1:], strict=False)
    # A wrong name is worse than none.
    if len(own) >= len(group) and all(parameter.numel() == gradient.numel() for parameter, gradient in inner):
        yield from (pair for pair in zip(group, own, strict=False) if not _replaced_by_update(pair[0]))


def _of_all(group: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> Iterator[Gradient]:
    """Stage 3: of each parameter as many elements as each rank has, at the end of the last ones nothing but padding."""
    for parameter, gradient in zip(group, gradients, strict=True):
        if not _replaced_by_update(parameter):
            yield parameter, gradient.reshape(-1)[: elements(parameter, gradient.numel())]


def _replaced_by_update(parameter: torch.Tensor) -> bool:
    """Muon puts its update into the place of the gradient before it is looked at."""
    return bool(getattr(parameter, "use_muon", False))
