"""Two gradients of the same micro-batch side by side: the sums that their differences are told by."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from scalescope.numerics.tallies import PROBE_TALLIES

# Elements compared at once: bounds the float64 copies (32 MB each).
_CHUNK = 1 << 22

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
    for low, high in zip(narrow.split(_CHUNK), whole.split(_CHUNK), strict=True):
        total += _sums(low.double() / scale, high.double())
    return total


def _sums(own: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """What :mod:`scalescope.numerics.tallies` says of each column, of float64 values, unscaled."""
    finite = own.isfinite() & reference.isfinite()
    nonfinite = ~own.isfinite(), ~reference.isfinite()
    own, reference = own.where(finite, own.new_zeros(())), reference.where(finite, reference.new_zeros(()))
    present = reference != 0
    sums = {
        "reference_nonzero": present.sum(),
        "lost": (present & (own == 0)).sum(),
        "error_squares": (own - reference).square().sum(),
        "reference_squares": reference.square().sum(),
        "own_squares": own.square().sum(),
        "products": (own * reference).sum(),
        "own_nonfinite": nonfinite[0].sum(),
        "reference_nonfinite": nonfinite[1].sum(),
    }
    return torch.stack([sums[name].double() for name in PROBE_TALLIES])


def _flat(gradient: torch.Tensor) -> torch.Tensor:
    dense = gradient.detach() if gradient.layout is torch.strided else gradient.detach().to_dense()
    return dense.reshape(-1)
