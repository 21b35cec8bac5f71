"""What an update did to weights that lie end to end, counted row by row: norms, and which elements felt it.

On the CPU by the compiled kernel where it is there, elsewhere and until then by torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from scalescope.numerics.absorbed import absorbed
from scalescope.numerics.machine_code import NUMBA, Kernels
from scalescope.numerics.paths import Faster

NORMS = ("update_norm", "weight_norm")
OF_GRADIENT = ("with_gradient", "unchanged")
OF_INTENDED = ("intended", "absorbed_fp16", "absorbed_bf16")
# Elements counted at once: on the CPU the scratch stays in the cache, elsewhere it is calls that cost.
_CHUNK_CPU, _CHUNK = 1 << 16, 1 << 20


def tallied(
    before: torch.Tensor,
    change: torch.Tensor,
    gradient: torch.Tensor,
    intended: torch.Tensor,
    lengths: Sequence[int],
    *,
    faster: Faster[Kernels] = NUMBA,
) -> torch.Tensor:
    """float64 [7, rows]: the two norms, then how many elements have a gradient, did not change though they have one,
    were meant to change, and of the last how many would not have felt it in fp16, and in bf16.

    Args:
        before, change, intended: float64 [elements]; the weights, what was added to them, what should have been.
        gradient: [elements], of any floating dtype.
        lengths: [rows], how many elements each row has, none of them 0.
    """
    if before.is_cpu:
        found = faster.attempt(lambda kernels: kernels.tally(lengths, before, change, gradient != 0, intended))
        if found is not None:
            found[: len(NORMS)].sqrt_()
            return found
    norms = [torch.stack(torch._foreach_norm(values.split(list(lengths)))) for values in (change, before)]
    return torch.cat([torch.stack(norms), _counted(before, change, gradient, intended, list(lengths)).double()])


def _counted(
    before: torch.Tensor, change: torch.Tensor, gradient: torch.Tensor, intended: torch.Tensor, lengths: list[int]
) -> torch.Tensor:
    columns = len(OF_GRADIENT) + len(OF_INTENDED)
    # Dtype and device are named: the training may have made others the default.
    flags = torch.empty(columns, len(before), dtype=torch.float32, device=before.device)
    chunk = _CHUNK_CPU if before.is_cpu else _CHUNK
    inputs = (before, change, gradient, intended, flags.T)
    for weights, moved, slope, aim, found in zip(*(tensor.split(chunk) for tensor in inputs), strict=True):
        _flag(weights, moved, slope, aim, found.T)
    return _summed(flags, lengths)


def _summed(flags: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Float32 [columns, rows]: how many ones each row has. Exact to 2**24."""
    if flags.is_cpu:
        starts = np.cumsum([0, *lengths[:-1]])
        return torch.from_numpy(np.add.reduceat(flags.numpy(), starts, axis=1))
    return torch.stack([torch.stack(torch._foreach_norm(column.split(lengths), 1)) for column in flags])


def _flag(
    weights: torch.Tensor, moved: torch.Tensor, gradient: torch.Tensor, aim: torch.Tensor, found: torch.Tensor
) -> None:
    with_gradient = gradient != 0
    found[0] = with_gradient
    found[1] = with_gradient & (moved == 0)
    # Neither zero nor NaN nor infinite: the last two have no difference to themselves.
    meant = (aim != 0) & (aim - aim == 0)
    found[2] = meant
    found[3] = meant & absorbed(weights, aim, torch.float16)
    found[4] = meant & absorbed(weights, aim, torch.bfloat16)
