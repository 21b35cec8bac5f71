"""Which updates a weight in a narrower format would not feel."""

from __future__ import annotations

import torch

# What float64 has and fp32 has not: the last bits of a fraction.
_EXTRA_BITS = 29
_EXTRA = (1 << _EXTRA_BITS) - 1


def absorbed(weights: torch.Tensor, updates: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bool [n]: whether ``round(round(w) + d) == round(w)``, rounding to ``dtype``, for each weight and update.

    Args:
        weights, updates: [n], on one device, the updates in float64. An update of 0 is absorbed; a weight that
            rounds to an infinity absorbs every finite update; NaN neither absorbs nor is absorbed.
        dtype: torch.float16 or torch.bfloat16.

    Exact for updates of at most 40 significant bits, as differences of fp32 weights are; of longer ones a tie is
    taken to be one within 2**-53 of the weight. Below 2**-126 results are rounded as fp32 holds them.
    """
    held = rounded(weights, dtype) if weights.dtype == torch.float64 else weights.to(dtype)
    return rounded(held.double().add_(updates), dtype).float() == held.float()


def rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``values`` (float64) in ``dtype`` (torch.float16 or torch.bfloat16), rounded once, to nearest, ties to even.

    torch casts float64 through fp32 and so rounds twice. Here the first rounding is to odd: what is cut off leaves
    the last bit that is kept set, so that the second one sees on which side of a tie the value was (Boldo and
    Melquiond, "When double rounding is odd", 2005).
    """
    bits = values.view(torch.int64)
    odd = (bits & _EXTRA).add_(_EXTRA).bitwise_or_(bits).bitwise_and_(~_EXTRA)
    return odd.view(torch.float64).float().to(dtype)
