"""In which format was a gradient computed? Its first values tell.

Under autocast an fp32 parameter's gradient is fp32, but that of a matmul weight holds fp16 (or bf16) values:
the backward ran in half and only the last cast widened it. So a gradient of one micro-batch, scaled, that
lies wholly on the fp16 grid was computed in fp16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from scalescope.readback import Reading, copied

# Bounds the temporary copies: the largest gradient may be the largest tensor that fits.
_CHUNK = 1 << 22
# A value computed in fp16 lies on bf16's coarser grid with probability 1/8: 8 of them, 1 in 16 million.
_ENOUGH = 8


@dataclass(frozen=True, slots=True)
class GridCheck:
    """A check under way; the four counts of :func:`_counts` come with the reading."""

    reading: Reading

    def ready(self) -> bool:
        return self.reading.ready()

    def verdict(self) -> str | None:
        """``fp16``, ``bf16`` or ``fp32``; None where the values cannot tell. Only when :meth:`ready`."""
        nonfinite, nonzero, off_fp16, off_bf16 = self.reading.numbers()
        if nonfinite or not nonzero:
            return None
        if off_fp16 and off_bf16:
            return "fp32"
        if off_fp16:
            return "bf16"
        if off_bf16:
            return "fp16"
        # On both grids: bf16's values in fp16's range are on fp16's grid as well, but not the other way round.
        return "bf16" if nonzero >= _ENOUGH else None


@torch.no_grad()
def check_grid(gradient: torch.Tensor) -> GridCheck:
    """Start the check of an fp32 ``gradient``, any shape, strided or sparse, on its own device."""
    values = gradient.detach()
    if values.layout is torch.sparse_coo:
        values = values._values()  # noqa: SLF001 - values() wants a coalesced tensor, and adding could leave the grid
    flat = values.reshape(-1)
    if not flat.numel():
        return GridCheck(copied(torch.zeros(4, dtype=torch.int64)))
    return GridCheck(copied(torch.stack([_counts(part) for part in flat.split(_CHUNK)]).sum(dim=0)))


def _counts(values: torch.Tensor) -> torch.Tensor:
    """int64 [4]: non-finite values, non-zero ones, and those off the fp16 and the bf16 grid."""
    nonfinite = (values - values).isnan()
    off_fp16 = values.half().float() != values
    off_bf16 = values.bfloat16().float() != values
    return torch.stack([torch.count_nonzero(found) for found in (nonfinite, values, off_fp16, off_bf16)])
