"""Measuring on the CPU: by the compiled kernel once it is there, by torch until then and otherwise.

The kernel is asked for by the first measurement that is large enough to be worth it, and compiled while training goes
on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scalescope.numerics import measure_cpu
from scalescope.numerics.machine_code import KINDS, NUMBA, Kernels
from scalescope.numerics.measure_cpu import Raw
from scalescope.numerics.paths import Faster, Path

# With fewer values than this, measuring takes torch 3 ms: no reason to start a compiler.
WORTH = 1 << 20


class HostMeasuring:
    """How this process measures tensors on the CPU."""

    def __init__(self, faster: Faster[Kernels] = NUMBA, *, worth: int = WORTH) -> None:
        self.faster = faster
        self._worth = worth

    def measure(self, values: Sequence[torch.Tensor], factor: float) -> Raw:
        """Every statistic of ``values`` times ``factor``: flat CPU tensors of fp32, bf16, fp16 or float64."""
        found = self.faster.attempt(lambda kernels: _measured(kernels, values, factor))
        if found is not None:
            return found
        if sum(tensor.numel() for tensor in values) >= self._worth:
            self.faster.ask()
        return measure_cpu.measure(values, factor)

    @property
    def path(self) -> Path:
        return self.faster.path("torch")


def _measured(kernels: Kernels, values: Sequence[torch.Tensor], factor: float) -> Raw:
    """By the kernel, but for float64, which it does not know."""
    known = [row for row, found in enumerate(values) if found.dtype in KINDS]
    if len(known) == len(values):
        return kernels.measure([found.contiguous() for found in values], factor)
    raw = Raw.zeros(len(values))
    raw.put(known, kernels.measure([values[row].contiguous() for row in known], factor))
    others = sorted(set(range(len(values))) - set(known))
    raw.put(others, measure_cpu.measure([values[row] for row in others], factor))
    return raw
