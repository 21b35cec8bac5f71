"""Compiles the named kernels for the CPU and prints LLVM's text of each, as one object of JSON. A program.

No training and no server runs this: compiling takes seconds in which Python's lock is held, so a process of its own
does it, and :mod:`~scalescope.numerics.loading` loads what it prints.

    python -m scalescope.numerics.compile_numba measure tally
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from numba import njit

from scalescope.numerics import measure_numba, stack_numba, tally_numba
from scalescope.numerics.elsewhere import step_back

# What would let Python call them needs numba where they run.
_OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "boundscheck": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}

_KERNELS: dict[str, tuple[object, Callable[..., int]]] = {
    "measure": (measure_numba.SIGNATURE, measure_numba.measure),
    "tally": (tally_numba.SIGNATURE, tally_numba.tally),
    "unpack": (stack_numba.SIGNATURE, stack_numba.unpack),
}


def text_of(signature: object, function: Callable[..., int]) -> str:
    """LLVM's text of ``function``, for arguments of ``signature``."""
    compiled: Any = njit(signature, **_OPTIONS)(function)
    return str(next(iter(compiled.inspect_llvm().values())))


def main() -> None:
    step_back()
    texts = {name: text_of(*_KERNELS[name]) for name in sys.argv[1:]}
    json.dump(texts, sys.stdout)


if __name__ == "__main__":
    main()
