"""Samples unpacked by a compiled kernel, where numba is installed: in a third of the time, and without Python's lock.

The first batch that is worth it has it compiled: that takes a processor some seconds, and what is loaded holds memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.elsewhere import printed_by
from scalescope.numerics.loading import Kernel
from scalescope.numerics.paths import Faster
from scalescope.packing import PackedHistograms

# Counts that are more than one batch holds of a trainer that is in no hurry: of 200 samples of 150 parameters.
MANY = 2**21
_CLASSES = 3


class StackKernel:
    """What unpacks many samples in one call."""

    def __init__(self, text: str) -> None:
        """Load it. Raises as :class:`Kernel` does."""
        self._unpack = Kernel(text, "iiii" + "p" * 9)

    def unpack(
        self,
        tables: Sequence[PackedHistograms],
        raws: Sequence[memoryview],
        low: int,
        most: int,
        counts: NDArray[np.float64],
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], bool]:
        """(classes [samples, 3, rows], amax and sum of squares [samples, rows], whether all of them can be).

        Args:
            raws: what each of ``tables`` unpacks to.
            low: the exponent of the first column of ``counts``.
            most: the elements that a row can have.
            counts: float64 [samples, rows, columns], contiguous, to be filled.
        """
        samples, rows, columns = counts.shape
        classes, real = np.empty((samples, _CLASSES, rows), np.int64), np.empty((2, samples, rows))
        lengths = np.array([len(raw) for raw in raws])
        of_tables = (
            np.cumsum(lengths) - lengths,
            np.array([table.low - low if table.bins else 0 for table in tables]),
            np.array([table.bins for table in tables]),
            np.array([table.width for table in tables]),
        )
        arrays = (np.frombuffer(b"".join(raws), np.uint8), *of_tables, counts, classes, *real)
        good = self._unpack(samples, rows, columns, most, *(array.ctypes.data for array in arrays))
        return classes, *real, bool(good)


def compile_elsewhere() -> StackKernel:
    """Let another process compile the kernel, and load it. Waits for it.

    Raises:
        CompileError, ImportError, OSError, subprocess.SubprocessError, ValueError: if that cannot be.
    """
    return StackKernel(json.loads(printed_by("compile_numba.py", "unpack", needs="numba"))["unpack"])


# The kernel of this process.
NUMBA: Faster[StackKernel] = Faster("numba", compile_elsewhere)
