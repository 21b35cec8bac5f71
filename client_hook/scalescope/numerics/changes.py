"""What an update did to weights that lie end to end, counted row by row: norms, and which elements felt it.

On the CPU by the compiled kernel where it is there, else by NumPy; elsewhere by torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from scalescope.numerics import changes_host
from scalescope.numerics.absorbed import absorbed
from scalescope.numerics.machine_code import NUMBA, Kernels
from scalescope.numerics.paths import Faster

NORMS = ("update_norm", "weight_norm")
OF_GRADIENT = ("with_gradient", "unchanged")
OF_INTENDED = ("intended", "absorbed_fp16", "absorbed_bf16")
# Elements counted at once on a device: it is calls that cost, and this bounds the scratch.
_CHUNK = 1 << 20


def tallied(
    before: torch.Tensor,
    after: torch.Tensor,
    gradient: torch.Tensor,
    intended: torch.Tensor | None,
    lengths: Sequence[int],
    *,
    faster: Faster[Kernels] = NUMBA,
) -> torch.Tensor:
    """float64 [7, rows]: the two norms, then how many elements have a gradient, did not change though they have one,
    were meant to change, and of the last how many would not have felt it in fp16, and in bf16.

    Args:
        before, after: [elements], the weights, of one floating dtype.
        gradient: [elements], of any floating dtype.
        intended: float64 [elements], what should have been added; None where that is what was.
        lengths: [rows], how many elements each row has, none of them 0.
    """
    if not before.is_cpu:
        return _on_device(before.double(), after.double(), gradient, intended, list(lengths))
    found = faster.attempt(lambda kernels: kernels.tally(lengths, before, after, gradient, intended))
    if found is None:
        # What is not finite is no error here, whatever the training has set for its own.
        with np.errstate(all="ignore"):
            found = changes_host.tallied(before, after, gradient, intended, lengths)
    return torch.from_numpy(found)


def _on_device(
    before: torch.Tensor,
    after: torch.Tensor,
    gradient: torch.Tensor,
    intended: torch.Tensor | None,
    lengths: list[int],
) -> torch.Tensor:
    change = after - before
    aims = change if intended is None else intended
    norms = [torch.stack(torch._foreach_norm(values.split(lengths))) for values in (change, before)]
    return torch.cat([torch.stack(norms), _counted(before, change, gradient, aims, lengths).double()])


def _counted(
    before: torch.Tensor, change: torch.Tensor, gradient: torch.Tensor, aims: torch.Tensor, lengths: list[int]
) -> torch.Tensor:
    """Float32 [5, rows]. Exact to 2**24."""
    columns = len(OF_GRADIENT) + len(OF_INTENDED)
    # Dtype and device are named: the training may have made others the default.
    flags = torch.empty(columns, len(before), dtype=torch.float32, device=before.device)
    inputs = (before, change, gradient, aims, flags.T)
    for weights, moved, slope, aim, found in zip(*(tensor.split(_CHUNK) for tensor in inputs), strict=True):
        _flag(weights, moved, slope, aim, found.T)
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
