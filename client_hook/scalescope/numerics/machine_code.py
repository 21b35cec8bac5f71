"""The kernels that numba compiles in another process, loaded into this one.

Compiling here, in a thread beside the training, cost a training of small steps 7 s on a busy machine, since it holds
Python's lock. The other process costs it nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from scalescope.numerics.elsewhere import printed_by
from scalescope.numerics.fields import FIELDS
from scalescope.numerics.loading import Kernel
from scalescope.numerics.measure_cpu import Raw
from scalescope.numerics.paths import Faster

# In the order of measure_numba's kinds.
KINDS = (torch.float32, torch.bfloat16, torch.float16)
# As measure_numba has them.
_BLOCK, _TABLES = 4096, 4
_TALLY_BLOCK = 1024


class Kernels:
    """All kernels for the CPU. Each does any number of tensors in one call."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._measure = Kernel(texts["measure"], "ippppfppppppp")
        self._tally = Kernel(texts["tally"], "ipipppppipppp")

    def measure(self, values: Sequence[torch.Tensor], factor: float) -> Raw:
        """Every statistic of ``values`` times ``factor``: flat contiguous CPU tensors of KINDS, one row each."""
        rows = len(values)
        raw = Raw.zeros(rows)
        addresses = np.array([found.data_ptr() for found in values], np.uint64)
        lengths = np.array([found.numel() for found in values], np.int64)
        kinds = np.array([KINDS.index(found.dtype) for found in values], np.int64)
        # Its own at each call: several threads may measure.
        block, fields = np.empty(_BLOCK, np.uint32), np.empty(_BLOCK, np.uint8)
        tables = np.zeros(_TABLES * FIELDS, np.uint32)
        places = (block, fields, tables, raw.fields, raw.inf, raw.amax, raw.squares)
        first = addresses.ctypes.data
        self._measure(
            rows,
            first,
            first,
            lengths.ctypes.data,
            kinds.ctypes.data,
            factor,
            *(place.ctypes.data for place in places),
        )
        return raw

    def tally(
        self,
        lengths: Sequence[int],
        before: torch.Tensor,
        after: torch.Tensor,
        gradient: torch.Tensor,
        intended: torch.Tensor | None,
    ) -> NDArray[np.float64]:
        """float64 [7, rows]: as :func:`scalescope.numerics.changes.tallied` has it, of tensors on the CPU."""
        wide = before.dtype == torch.float64
        # Their values are the same in fp32, and of a gradient in float64 it matters only that it is not zero.
        weights = [values if wide else values.float() for values in (before, after)]
        slope = (gradient != 0).float() if gradient.dtype == torch.float64 else gradient.float()
        out = np.zeros((7, len(lengths)), np.float64)
        ends = np.array(lengths, np.int64)
        values, scratch = np.empty(2 * _TALLY_BLOCK), np.empty(4 * _TALLY_BLOCK, np.int32)
        self._tally(
            len(lengths),
            ends.ctypes.data,
            wide,
            *(found.data_ptr() for found in weights for _ in range(2)),
            slope.data_ptr(),
            intended is not None,
            None if intended is None else intended.data_ptr(),
            *(place.ctypes.data for place in (values, scratch, out)),
        )
        np.sqrt(out[:2], out=out[:2])
        return out


def compile_elsewhere() -> Kernels:
    """Let another process compile the kernels, and load them. Waits for it.

    Raises:
        CompileError, ImportError, OSError, subprocess.SubprocessError, ValueError: if that cannot be.
    """
    return Kernels(json.loads(printed_by("compile_numba.py", "measure", "tally", needs="numba")))


# The kernels of this process.
NUMBA: Faster[Kernels] = Faster("numba", compile_elsewhere)
