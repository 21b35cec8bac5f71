"""Which elements of a parameter are looked at: all, or short runs of them at equal distances.

The same places are read in a parameter, in its gradient and in its optimizer state, whatever way each of them
lies in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch._utils import _flatten_dense_tensors

from scalescope.taps.backward.gradients import local

# Elements looked at in one update, of all parameters together, about. Copied before a step: their weights and
# gradients, and in half precision their optimizer state, at most 10 MB.
MOST = 1 << 18
# Parameters up to this size are looked at whole, unless there are so many that they alone would be too much.
_SMALL = 4096
# A cache line of fp32: what is read of memory is used.
_RUN = 16
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True)
class Look:
    """How one parameter is looked at: the first ``_RUN`` of every ``period`` elements; all of them where it is 0.

    ``order`` has the dimensions from the longest stride to the shortest where the parameter is not contiguous,
    so that it is read as it lies.
    """

    numel: int
    period: int
    order: tuple[int, ...] | None

    @property
    def looked(self) -> int:
        return self.numel // self.period * _RUN if self.period else self.numel

    def at(self, tensor: torch.Tensor) -> torch.Tensor:
        """[looked]: the elements of ``tensor``, of the parameter's shape; a view where that can be."""
        found = local(tensor).detach()
        flat = (found if self.order is None else found.permute(self.order)).reshape(-1)
        if not self.period:
            return flat
        whole = self.numel // self.period * self.period
        return flat[:whole].view(-1, self.period)[:, :_RUN].reshape(-1)

    def within(self, tensor: torch.Tensor) -> torch.Tensor:
        """What :meth:`at` answers, but in the shape of ``tensor`` where all of it is looked at as it lies."""
        whole = not self.period and self.order is None and type(tensor) in _PLAIN
        return tensor if whole else self.at(tensor)


def end_to_end(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """A copy of all ``parts``, at least one, flat and under one another."""
    # In one call, without a view of each; a single one it would not copy.
    return _flatten_dense_tensors(parts) if len(parts) > 1 else parts[0].detach().reshape(-1).clone()


def looks(shards: Sequence[torch.Tensor], *, most: int = MOST) -> list[Look]:
    """How to look at each of ``shards`` so that together it is at most about twice ``most`` elements.

    The large ones are looked at in equal parts, so that sums over parameters weigh them by their size.
    """
    small = max(min(_SMALL, most // max(len(shards), 1)), 2 * _RUN)
    sizes = [shard.numel() for shard in shards]
    if sum(sizes) <= most:
        small = most
    part = max(math.ceil(sum(size for size in sizes if size > small) / most), 1)
    return [Look(size, _period(size, part, small), _order(shard)) for size, shard in zip(sizes, shards, strict=True)]


def _period(size: int, part: int, small: int) -> int:
    """0 for all; else such that ``1 / part`` is looked at, or more where that would be less than ``small``."""
    if size <= small or part == 1:
        return 0
    period = max(min(part, size // small), 1) * _RUN
    # Without a common factor the runs begin in every column in turn.
    while math.gcd(period, size) > 1:
        period += 1
    return period


def _order(shard: torch.Tensor) -> tuple[int, ...] | None:
    if shard.is_contiguous():
        return None
    return tuple(sorted(range(shard.dim()), key=shard.stride, reverse=True))
