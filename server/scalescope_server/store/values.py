"""Floats in the database: a nullable value beside a flag.

SQLite binds NaN as NULL and Postgres sorts it highest, so neither NaN nor infinity is ever bound: such a value
is NULL and its flag says what it was. Flags are stored, so their numbers do not change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

FLAG_BITS = 2
FLAG_MASK = 3


class Flag(IntEnum):
    """What a stored value is. The first four fit two bits; ``ABSENT`` is only used where a key needs a value."""

    FINITE = 0
    NAN = 1
    INF = 2
    NEGATIVE_INF = 3
    ABSENT = 4


_VALUES = {Flag.NAN: math.nan, Flag.INF: math.inf, Flag.NEGATIVE_INF: -math.inf}


def flags(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The flag of each value, int64 of the same shape."""
    infinite = np.where(values > 0, int(Flag.INF), int(Flag.NEGATIVE_INF))
    found = np.where(np.isnan(values), int(Flag.NAN), np.where(np.isinf(values), infinite, int(Flag.FINITE)))
    return found.astype(np.int64)


def nullable(values: NDArray[np.float64]) -> list[float | None]:
    """The values as they are bound: None for what is not finite."""
    finite = np.isfinite(values)
    if finite.all():
        return list(values.tolist())
    found = values.astype(object)
    found[~finite] = None
    return list(found.tolist())


def bound(values: NDArray[Any], *, whole: bool = False) -> list[Any]:
    """An array as a column is bound, None for what is not finite; ``whole``: the column is of whole numbers."""
    if values.dtype.kind != "f":
        return list(values.tolist())
    found = nullable(values)
    return [None if value is None else int(value) for value in found] if whole else list(found)


def restored(values: Sequence[float | None], flag: Sequence[int]) -> NDArray[np.float64]:
    """float64 [rows]: the values that were stored as ``nullable`` beside ``flags``."""
    pairs = zip(values, flag, strict=True)
    return np.array([_VALUES.get(Flag(f), math.nan) if v is None else v for v, f in pairs], np.float64)


def stored_value(value: float | None, flag: int) -> float | None:
    """One value that was stored beside its flag; None where there is none."""
    return _VALUES.get(Flag(flag)) if value is None else value


def scale_key(scale: float | None) -> tuple[float, int]:
    """(value, flag) of a loss scale, never null, so that it can be part of a key."""
    if scale is None:
        return 0.0, int(Flag.ABSENT)
    if math.isfinite(scale):
        return scale, int(Flag.FINITE)
    return 0.0, int(flags(np.array([scale]))[0])


def scale_of(value: float, flag: int) -> float | None:
    """The loss scale that :func:`scale_key` was given."""
    if flag == Flag.FINITE:
        return value
    return _VALUES.get(Flag(flag))
