"""Compiles the Triton kernels for a device into Triton's cache. A program, so that no training waits for it.

What it compiles is what :mod:`~scalescope.numerics.launches` launches: the arguments are of the
same types, so the training's first launch finds it.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaUtils
from triton.runtime import driver

from scalescope.numerics import kernels
from scalescope.numerics.elsewhere import step_back
from scalescope.numerics.launches import compile_both


class Device:
    """What Triton asks of a device before it compiles for it."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device


def main(capability: int) -> None:
    """For a ``capability`` such as 90."""
    device: Any = Device(capability)
    driver.set_active(device)
    compile_both(kernels)


def build_launcher() -> None:
    """What launches them, which is compiled too: where there is a device."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    CudaUtils()


if __name__ == "__main__":
    step_back()
    main(int(sys.argv[1]))
    build_launcher()
