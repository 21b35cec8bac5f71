"""How the functions that make up a kernel are compiled: unchecked, and with no liberty that is not named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

_OPTIONS: dict[str, Any] = {"error_model": "numpy", "boundscheck": False}
F = TypeVar("F", bound=Callable[..., Any])


def exact(function: F) -> F:
    """As it is written."""
    compiled: Any = njit(**_OPTIONS)(function)
    return compiled  # type: ignore[no-any-return]


def summing(function: F) -> F:
    """Sums may be added in another order, in as many lanes as the machine has; nothing else is taken liberties with."""
    compiled: Any = njit(fastmath={"reassoc"}, **_OPTIONS)(function)
    return compiled  # type: ignore[no-any-return]
