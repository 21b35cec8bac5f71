"""Launches of the compiled kernels on one device. They never wait, and cost the same for any number of tensors."""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

import torch

from scalescope.numerics.elsewhere import CompileError, printed_by
from scalescope.numerics.tables import Table

# Words of a tensor's results, as kernels.ROW has them.
ROW = 260
# 32 values for each thread: enough reads on their way for the memory to be busy, few enough to stay in registers.
TILE, WARPS = 4096, 4


class Launches:
    """The kernels, for tensors of ``device``."""

    def __init__(self, device: torch.device) -> None:
        """Raise ImportError if Triton is not installed."""
        from scalescope.numerics import kernels

        self._kernels: Any = kernels
        self._device = device
        self._loaded: list[Any] = []

    def measure(self, words: torch.Tensor, table: Table, factor: float, out: torch.Tensor) -> None:
        """Add the statistics of the tensors of ``table``, whose words are on the device, to ``out``.

        Args:
            out: int64 [rows * ROW] on the device, zeros: as :mod:`~scalescope.numerics.kernels` has them.
        """
        if table.programs:
            with self._current():
                self._kernels.measure[(table.programs,)](
                    words, table.rows, table.programs, table.tiles, float(factor), out, tile=TILE, num_warps=WARPS
                )

    def count_if(self, found_inf: torch.Tensor, words: torch.Tensor, table: Table, out: torch.Tensor) -> None:
        """Where ``found_inf`` is above 0, add how many values of each tensor are not finite to ``out``.

        Args:
            found_inf: one fp32 on the device.
            out: int64 [1 + rows] on the device, zeros; the first becomes 1 where ``found_inf`` is above 0.
        """
        if table.programs:
            with self._current():
                self._kernels.count_if[(table.programs,)](
                    found_inf, words, table.rows, table.programs, table.tiles, out, tile=TILE, num_warps=WARPS
                )

    def find(self) -> None:
        """Have them ready, so that the first launch is like any other."""
        with self._current():
            # With a grid they are on the device; some versions of Triton run a C compiler for that.
            self._loaded = [compiled[(1, 1, 1)] for compiled in compile_both(self._kernels)]

    def _current(self) -> contextlib.AbstractContextManager[object]:
        """Triton launches on the current device, which need not be that of the tensors."""
        return torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext()


def compile_both(kernels: ModuleType) -> tuple[Any, Any]:
    """Both compiled for arguments as above, for the device that Triton takes for the current one; launch nothing."""
    words, number = torch.int64, 1
    options: dict[str, Any] = {"tile": TILE, "num_warps": WARPS, "grid": (1,)}
    return (
        kernels.measure.warmup(words, number, number, number, 1.0, words, **options),
        kernels.count_if.warmup(torch.float32, words, number, number, number, words, **options),
    )


def compile_elsewhere(device: torch.device) -> Launches:
    """Let another process compile the kernels for ``device``, and find what it made in Triton's cache. Waits for it.

    Raises:
        CompileError, ImportError, OSError, subprocess.SubprocessError, or what Triton raises: if that cannot be.
    """
    if device.type != "cuda" or torch.version.cuda is None:
        raise CompileError("only for devices of NVIDIA")
    major, minor = torch.cuda.get_device_capability(device)
    printed_by("compile_kernels.py", str(10 * major + minor), needs="triton")
    launches = Launches(device)
    launches.find()
    return launches
