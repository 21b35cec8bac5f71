"""Which tensors a launch measures and which program takes which part of them: a table of int64, to be copied over.

It holds, one after the other: the address, the length and the kind of each tensor; then, for each program, its tensor
and the index of its first value there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

# As the kernels number them.
KINDS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# Programs of one launch, about: several for each processor of the largest devices, and a table of at most 0.2 MB.
_PROGRAMS = 8192


class Table(NamedTuple):
    """``words`` int64 [3 * rows + 2 * programs]; a program takes ``tiles`` tiles of one tensor."""

    words: NDArray[np.int64]
    rows: int
    programs: int
    tiles: int


def table_of(values: Sequence[torch.Tensor], tile: int, *, programs: int = _PROGRAMS) -> Table:
    """The table of ``values``, flat contiguous tensors of KINDS, read in tiles of ``tile`` values.

    Args:
        programs: about how many to have at most: one for each tensor that is not empty comes on top.
    """
    rows = len(values)
    addresses = np.array([found.data_ptr() for found in values], np.int64)
    lengths = np.array([found.numel() for found in values], np.int64)
    kinds = np.array([KINDS.index(found.dtype) for found in values], np.int64)
    tiles = max(1, -(-int(lengths.sum()) // (tile * programs)))
    stretch = tile * tiles
    each = -(-lengths // stretch)
    row = np.repeat(np.arange(rows, dtype=np.int64), each)
    within = np.arange(len(row), dtype=np.int64) - np.repeat(np.cumsum(each) - each, each)
    return Table(np.concatenate([addresses, lengths, kinds, row, within * stretch]), rows, len(row), tiles)
