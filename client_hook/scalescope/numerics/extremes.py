"""The largest finite magnitude of a tensor and how many of its values are finite: exact, without a wait.

On the CPU one pass that allocates nothing tells both while all values are finite. On a device the answers stay
there, as tensors of one element, for the caller to copy together.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

# Elements looked at once on a device: bounds the temporary copies, since an output may be the largest tensor there.
_CHUNK = 1 << 24
_NATIVE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Extremes(NamedTuple):
    """``amax``: the largest finite magnitude, 0 where there is none; ``finite``: how many values are."""

    amax: float | torch.Tensor
    finite: int | torch.Tensor


def extremes(values: torch.Tensor) -> Extremes:
    """Of ``values``, detached and strided, of any shape and floating dtype. Not one of them is changed."""
    if not values.numel():
        return Extremes(0.0, 0)
    native = values if values.dtype in _NATIVE else values.float()
    return _on_host(native) if native.is_cpu else _on_device(native)


def below_infinity(values: torch.Tensor) -> int | torch.Tensor:
    """How many of ``values``, detached, are neither NaN nor +inf. -inf is what masks are made of."""
    count = torch.count_nonzero(values < torch.inf)
    return int(count) if values.is_cpu else count


def _on_host(values: torch.Tensor) -> Extremes:
    amax = _magnitude(values)
    if math.isfinite(amax):
        return Extremes(amax, values.numel())
    finite = values.isfinite()
    return Extremes(_magnitude(torch.where(finite, values, values.new_zeros(()))), int(torch.count_nonzero(finite)))


def _magnitude(values: torch.Tensor) -> float:
    """The largest magnitude: NaN or infinity as soon as one value is."""
    low, high = torch.aminmax(values)
    return max(-float(low), float(high))


def _on_device(values: torch.Tensor) -> Extremes:
    if values.numel() <= _CHUNK:
        return _chunk(values)
    parts = [_chunk(part) for part in values.reshape(-1).split(_CHUNK)]
    amax, finite = (torch.stack([torch.as_tensor(part[column]) for part in parts]) for column in (0, 1))
    return Extremes(amax.max(), finite.sum())


def _chunk(values: torch.Tensor) -> Extremes:
    magnitude = values.abs()
    finite = magnitude < torch.inf
    return Extremes(torch.where(finite, magnitude, magnitude.new_zeros(())).max(), torch.count_nonzero(finite))
