"""LLVM's text of a function, made into code for the processor that runs it and called without Python's lock.

numba compiles in another process (see :mod:`~scalescope.numerics.elsewhere`): importing it takes 0.5 s, compiling holds
Python's lock for seconds. Loading what it prints takes about 0.05 s.
"""

from __future__ import annotations

import ctypes
from typing import Any

from scalescope.numerics.elsewhere import CompileError

_TYPES: dict[str, Any] = {"i": ctypes.c_int64, "f": ctypes.c_float, "p": ctypes.c_void_p}


class Kernel:
    """One function of LLVM's text, loaded. While it runs Python's lock is free."""

    def __init__(self, text: str, arguments: str) -> None:
        """Load it.

        Args:
            arguments: a letter for each: ``i`` int64, ``f`` fp32, ``p`` an address.

        Raises:
            CompileError: if ``text`` is not LLVM's text of one function, or needs more than itself.
            ImportError: if llvmlite is not installed.
        """
        self._engine, address = _loaded(text)
        types = [_TYPES[letter] for letter in arguments]
        # numba's convention: a status, where to put the result, where to put an exception; then the arguments.
        self._function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *types)(address)

    def __call__(self, *arguments: object) -> int:
        """What it returns; CompileError if it does not end well."""
        told = ctypes.c_int64(-1)
        status = self._function(ctypes.addressof(told), None, *arguments)
        if status:
            raise CompileError(f"expected status 0, got {status}")
        return told.value


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
