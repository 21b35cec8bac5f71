"""Measuring on the CPU by the compiled kernel, once it is there.

It is asked for by the first measurement that is large enough to be worth it, and compiled while training goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from scalescope.numerics import measure_cpu
from scalescope.numerics.machine_code import KINDS, Kernel, compile_elsewhere
from scalescope.numerics.measure_cpu import Raw
from scalescope.numerics.paths import Faster

# With fewer values than this, measuring takes torch 3 ms: no reason to start a compiler.
_WORTH = 1 << 20


class Accelerated(Faster):
    """The kernel of this process: not asked for, on its way, in use, or given up.

    Attributes:
        settled: set once it is in use or given up.
    """

    def __init__(self, build: Callable[[], Kernel] = compile_elsewhere, *, worth: int = _WORTH) -> None:
        super().__init__("numba", "not asked for: no measurement was large")
        self.settled = threading.Event()
        self._build = build
        self._worth = worth
        self._kernel: Kernel | None = None
        self._asked = False

    def measure(self, values: Sequence[torch.Tensor], factor: float) -> Raw:
        """Every statistic of ``values`` times ``factor``: flat CPU tensors of fp32, bf16, fp16 or float64."""
        kernel = self._kernel
        if kernel is not None and not self.reason:
            found = self.attempt(lambda: _measured(kernel, values, factor))
            if found is not None:
                return found
        elif not self._asked and sum(found.numel() for found in values) >= self._worth:
            self._ask()
        return measure_cpu.measure(values, factor)

    def _ask(self) -> None:
        self._asked = True
        self.reason = "on its way"
        threading.Thread(target=self._compile, name="scalescope-kernel", daemon=True).start()

    def _compile(self) -> None:
        self._kernel = self.attempt(self._build)
        if self._kernel is not None:
            self.reason = ""
        self.settled.set()


def _measured(kernel: Kernel, values: Sequence[torch.Tensor], factor: float) -> Raw:
    """By the kernel, but for float64, which it does not know."""
    known = [row for row, found in enumerate(values) if found.dtype in KINDS]
    if len(known) == len(values):
        return kernel.measure([found.contiguous() for found in values], factor)
    raw = Raw.zeros(len(values))
    raw.put(known, kernel.measure([values[row].contiguous() for row in known], factor))
    others = sorted(set(range(len(values))) - set(known))
    raw.put(others, measure_cpu.measure([values[row] for row in others], factor))
    return raw
