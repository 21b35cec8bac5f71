"""Functions of the values told in a window that moves with the updates, a file for each kind.

A window is told values with their keys: the number of the update, or its time in seconds. What was told at the key
``oldest`` or before it has left it. ``push`` tells a value, ``slide`` only moves on; both answer the function's
value, None where it has none. Keys and ``oldest`` never fall; values are finite. The answer depends on what is in the
window alone, to the last bit: an evaluator that was restored from the last window and one that was never interrupted
say the same. The cost of an update does not depend on the width: it is amortised O(1), and O(log n) of order
statistics.
"""

from __future__ import annotations

from typing import Protocol


class Window(Protocol):
    """See the module."""

    def push(self, key: float, value: float, oldest: float) -> float | None: ...

    def slide(self, oldest: float) -> float | None: ...
