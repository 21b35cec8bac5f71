"""The kernel that numba compiles in another process, loaded into this one.

Compiling here, in a thread beside the training, cost a training of small steps 7 s on a busy machine, since it holds
Python's lock; importing numba alone 0.5 s. The other process costs it nothing, and loading what it prints about 0.05 s.
LLVM's text travels and not machine code, so that what is loaded is made for the processor that runs it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from scalescope.numerics.elsewhere import CompileError, printed_by
from scalescope.numerics.fields import FIELDS
from scalescope.numerics.measure_cpu import Raw

# In the order of measure_numba's kinds.
KINDS = (torch.float32, torch.bfloat16, torch.float16)
# As measure_numba has them.
_BLOCK, _TABLES = 4096, 4


class Kernel:
    """Measures any number of tensors in one call, during which Python's lock is free."""

    def __init__(self, text: str) -> None:
        """Load LLVM's text of one function.

        Raises:
            CompileError: if it is not text of LLVM, or needs more than itself.
            ImportError: if llvmlite is not installed.
        """
        self._engine, address = _loaded(text)
        # numba's convention: a status, where to put the result, where to put an exception; then the arguments.
        words = [ctypes.c_void_p] * 4
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int32,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int64,
            *words,
            ctypes.c_float,
            *[ctypes.c_void_p] * 7,
        )
        self._function = kind(address)

    def measure(self, values: Sequence[torch.Tensor], factor: float) -> Raw:
        """Every statistic of ``values`` times ``factor``: flat contiguous CPU tensors of KINDS, one row each."""
        rows = len(values)
        raw = Raw.zeros(rows)
        addresses = np.array([found.data_ptr() for found in values], np.uint64)
        lengths = np.array([found.numel() for found in values], np.int64)
        kinds = np.array([KINDS.index(found.dtype) for found in values], np.int64)
        # Its own at each call: several threads may measure.
        block, fields = np.empty(_BLOCK, np.uint32), np.empty(_BLOCK, np.uint8)
        tables, told = np.zeros(_TABLES * FIELDS, np.uint32), np.zeros(1, np.int64)
        places = (block, fields, tables, raw.fields, raw.inf, raw.amax, raw.squares)
        first = addresses.ctypes.data
        status = self._function(
            told.ctypes.data,
            None,
            rows,
            first,
            first,
            lengths.ctypes.data,
            kinds.ctypes.data,
            factor,
            *(place.ctypes.data for place in places),
        )
        if status or told[0] != rows:
            raise CompileError(f"expected status 0 and {rows} rows, got status {status} and {told[0]} rows")
        return raw


def compile_elsewhere() -> Kernel:
    """Let another process compile the kernel, and load it. Waits for it.

    Raises:
        CompileError, ImportError, OSError, subprocess.SubprocessError: if that cannot be.
    """
    return Kernel(printed_by("measure_numba.py", needs="numba"))


def _loaded(text: str) -> tuple[Any, int]:
    """The engine, which has to live as long as the function, and the function's address."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"expected LLVM's text: {error}") from error
    # LLVM ends the process that loads code which asks for what is not there.
    missing = [found.name for found in module.functions if found.is_declaration and not found.name.startswith("llvm.")]
    named = [
        found.name for found in module.functions if not found.is_declaration and found.linkage == llvm.Linkage.external
    ]
    if missing or len(named) != 1:
        raise CompileError(f"expected one function that needs no other, got {named} that need {missing}")
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    return engine, engine.get_function_address(named[0])
