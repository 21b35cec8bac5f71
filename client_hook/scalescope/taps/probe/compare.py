"""Two gradients of the same micro-batch side by side: the sums that their differences are told by."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from scalescope.numerics.tallies import PROBE_TALLIES

# Elements compared at once: bounds the float64 copies (32 MB each), and keeps them in a core's cache on the CPU.
_CHUNK = 1 << 22
_CHUNK_CPU = 1 << 14

Columns = dict[str, NDArray[np.float64]]


@torch.no_grad()
def compare(own: Mapping[int, torch.Tensor], reference: Mapping[int, torch.Tensor], scale: float) -> Columns:
    """One value per column of :data:`PROBE_TALLIES` for each parameter in ``reference``, float64 [parameters].

    Args:
        own: index -> gradient as the training computes it, times ``scale``; a missing one is zero.
        reference: index -> gradient in fp32, not scaled. Any layout; both of one shape.
    """
    rows = [_tally(own.get(index), gradient, scale) for index, gradient in reference.items()]
    # One transfer for each device: a wait, which whoever asks for a probe has asked for.
    table = np.stack([row.cpu().numpy() for row in rows]) if rows else np.zeros((0, len(PROBE_TALLIES)))
    return {name: table[:, place] for place, name in enumerate(PROBE_TALLIES)}


def _tally(own: torch.Tensor | None, reference: torch.Tensor, scale: float) -> torch.Tensor:
    """float64 [columns], on the gradients' device."""
    whole = _flat(reference)
    narrow = torch.zeros_like(whole) if own is None else _flat(own)
    total = torch.zeros(len(PROBE_TALLIES), dtype=torch.float64, device=whole.device)
    chunk = _CHUNK_CPU if whole.is_cpu else _CHUNK
    for low, high in zip(narrow.split(chunk), whole.split(chunk), strict=True):
        total += _sums(low.double() / scale, high.double())
    return total


def _sums(own: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """What :mod:`scalescope.numerics.tallies` says of each column, of flat float64 values, unscaled."""
    # Zero for what is finite, else NaN: isfinite() takes several times as long on the CPU.
    overflowed, broken = (own - own) != 0, (reference - reference) != 0
    left_out = overflowed | broken
    own, reference = own.masked_fill(left_out, 0.0), reference.masked_fill(left_out, 0.0)
    present = reference != 0
    error = own - reference
    sums = {
        "reference_nonzero": present.sum(),
        "lost": (present & (own == 0)).sum(),
        "error_squares": error.dot(error),
        "reference_squares": reference.dot(reference),
        "own_squares": own.dot(own),
        "products": own.dot(reference),
        "own_nonfinite": overflowed.sum(),
        "reference_nonfinite": broken.sum(),
    }
    return torch.stack([sums[name].double() for name in PROBE_TALLIES])


def _flat(gradient: torch.Tensor) -> torch.Tensor:
    dense = gradient.detach() if gradient.layout is torch.strided else gradient.detach().to_dense()
    return dense.reshape(-1)
