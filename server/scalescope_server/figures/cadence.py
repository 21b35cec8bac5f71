"""Where samples came as rarely as they were taken, and where some are missing that should have come.

A budget spreads samples by powers of two, so a sample stands for the updates until the next one, however far that is,
unless those around it lie closer together: then something is missing in between, and is not to be painted over.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Where one sample of a regular row is missing the gap is twice as long.
_LONGER = 1.5
# The last gap may be the first of a longer interval, the first one the last of such.
GROWN = 2
# After a skip so many updates in a row are sampled: gaps that far around one say how long it may be.
AFTER_SKIP = 9


def holes(
    steps: Sequence[int] | NDArray[np.int64], every: int, *, grain: int = 1, around: int = 1
) -> NDArray[np.bool_]:
    """Bool [len(steps) - 1]: whether samples are missing between two of ``steps``, which rise.

    Args:
        every: updates between samples where no budget spreads them.
        grain: a step is the first of so many updates, in any of which its sample may have been taken.
        around: so many gaps before and after one say how long it may be. More than one where not all steps are those of
            periodic samples: after a skip there are some in a row, which also cut the interval before them short.
    """
    gaps = np.diff(np.asarray(steps, np.int64))
    longest = np.full(len(gaps), every if len(gaps) == 1 else 0)
    for k in range(1, around + 1):
        np.maximum(longest[k:], gaps[:-k], out=longest[k:])
        np.maximum(longest[:-k], gaps[k:], out=longest[:-k])
    longer = np.full(len(gaps), _LONGER if around == 1 else GROWN)
    if len(gaps) > 1:
        longer[[0, -1]] = GROWN
    found: NDArray[np.bool_] = gaps > longer * longest + grain - 1
    return found
