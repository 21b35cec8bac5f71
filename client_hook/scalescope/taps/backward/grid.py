"""In which format was a gradient computed? Its first values tell.

Under autocast an fp32 parameter's gradient is fp32, but that of a matmul weight holds fp16 (or bf16) values:
the backward ran in half and only the last cast widened it. So a gradient of one micro-batch, scaled, that
lies wholly on the fp16 grid was computed in fp16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from scalescope.readback import Copied, copied

# Bounds the temporary copies: the largest gradient may be the largest tensor that fits.
_CHUNK = 1 << 22
_SAMPLE = 4096
# Where fp16 has 11 significant bits, a value lies on bf16's grid of 8 with probability 1/8; where it has 6 or
# fewer, a bf16 value lies on fp16's with probability 1/4. Eight different values of one kind settle it.
_FINER = 2.0**-14
_COARSER = 2.0**-18
_ENOUGH = 8
# In the bits of an fp32 value the last that bf16 keeps.
_LAST_OF_BF16 = 1 << 16


@dataclass(frozen=True, slots=True)
class GridCheck:
    """A check under way. Its reading holds the counts of :func:`_counted` and of :func:`_different`."""

    reading: Copied

    def ready(self) -> bool:
        return self.reading.ready()

    def verdict(self) -> str | None:
        """``fp16``, ``bf16`` or ``fp32``; None where the values cannot tell. Only when :meth:`ready`."""
        nonfinite, nonzero, off_fp16, off_bf16, whole, finer, coarser = self.reading.numbers()
        if nonfinite or not nonzero:
            return None
        if off_fp16 and off_bf16:
            return "fp32"
        if off_fp16:
            # Powers of two and small multiples of them, the gradients of a bias under a mean or a sum, lie on every
            # grid; off that of fp16 they are for their size alone.
            return "bf16" if whole else None
        if off_bf16:
            return "fp16"
        # On both grids.
        if (finer >= _ENOUGH) is (coarser >= _ENOUGH):
            return None
        return "bf16" if finer >= _ENOUGH else "fp16"


@torch.no_grad()
def check_grid(gradient: torch.Tensor) -> GridCheck:
    """Start the check of an fp32 ``gradient``, any shape, strided or sparse, on its own device."""
    values = gradient.detach()
    if values.layout is torch.sparse_coo:
        values = values._values()  # noqa: SLF001 - values() wants a coalesced tensor, and adding could leave the grid
    flat = values.reshape(-1)
    if not flat.numel():
        return GridCheck(copied(torch.zeros(7, dtype=torch.int64, device=flat.device)))
    off = torch.stack([_counted(part) for part in flat.split(_CHUNK)]).sum(dim=0)
    return GridCheck(copied(torch.cat([off, _different(flat)])))


def _counted(values: torch.Tensor) -> torch.Tensor:
    """int64 [5]: non-finite values, non-zero ones, those off the fp16 and the bf16 grid, and those that use the last
    of bf16's bits.
    """
    nonfinite = (values - values).isnan()
    off_fp16 = values.half().float() != values
    off_bf16 = values.bfloat16().float() != values
    whole = values.contiguous().view(torch.int32) & _LAST_OF_BF16
    return torch.stack([torch.count_nonzero(found) for found in (nonfinite, values, off_fp16, off_bf16, whole)])


def _different(values: torch.Tensor) -> torch.Tensor:
    """int64 [2]: different magnitudes, in a strided sample, where fp16's grid is the finer and the coarser one."""
    magnitudes = values[:: len(values) // _SAMPLE + 1].abs().sort().values
    fresh = torch.diff(magnitudes, prepend=magnitudes.new_zeros(1)) != 0
    kinds = (fresh & (magnitudes >= _FINER), fresh & (magnitudes < _COARSER))
    return torch.stack([torch.count_nonzero(kind) for kind in kinds])
