"""Compiles the kernels for the CPU and prints LLVM's text of each, as one object of JSON. A program.

No training runs this: compiling takes seconds in which Python's lock is held, so a process of its own does it, and
:mod:`~scalescope.numerics.machine_code` loads what it prints.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from numba import njit

from scalescope.numerics import measure_numba, tally_numba
from scalescope.numerics.elsewhere import step_back

# What would let Python call them needs numba where they run.
_OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "boundscheck": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


def text_of(signature: object, function: Callable[..., int]) -> str:
    """LLVM's text of ``function``, for arguments of ``signature``."""
    compiled: Any = njit(signature, **_OPTIONS)(function)
    return str(next(iter(compiled.inspect_llvm().values())))


def main() -> None:
    step_back()
    texts = {
        "measure": text_of(measure_numba.SIGNATURE, measure_numba.measure),
        "tally": text_of(tally_numba.SIGNATURE, tally_numba.tally),
    }
    json.dump(texts, sys.stdout)


if __name__ == "__main__":
    main()
