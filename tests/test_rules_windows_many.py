"""Functions of many columns at once say of each what the function of one window says of it alone, to the last bit."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scalescope_server.rules.windows import Window
from scalescope_server.rules.windows.catalogue import COUNTED, OVER, Function
from scalescope_server.rules.windows.many import Pushed
from scalescope_server.rules.windows.many_totals import quotients
from scalescope_server.rules.windows.rates import Rate
from scalescope_server.rules.windows.ring import Entering, Ring

COLUMNS = 3
FUNCTIONS: dict[str, Function] = {
    **{str(name): function for name, function in OVER.items()},
    "quantile": OVER["quantile"].of(0.9),
    "count": COUNTED["count"],
    "share": COUNTED["rate"],
}
finite = st.floats(allow_nan=False, allow_infinity=False)
# Few values tie and turn; others have every exponent there is.
values = st.sampled_from([0.0, 1.0, 1.0, -2.0, 0.1, 1e16, 5e-324]) | finite
rows = st.lists(st.lists(st.none() | values, min_size=COLUMNS, max_size=COLUMNS), min_size=1, max_size=30)


class Alone:
    """A window of each column."""

    def __init__(self, function: Function) -> None:
        self.windows = [function.window() for _ in range(COLUMNS)]

    def push(self, key: float, row: Sequence[float | None], oldest: float) -> list[float | None]:
        told = zip(self.windows, row, strict=True)
        return [None if value is None else _pushed(window, key, value, oldest) for window, value in told]


def _pushed(window: Window, key: float, value: float, oldest: float) -> float | None:
    if isinstance(window, Rate):
        window.at = 2.0 * key
    return window.push(key, value, oldest)


class Together:
    """One of all columns."""

    def __init__(self, function: Function) -> None:
        self.ring, self.many = Ring(COLUMNS), function.columns(COLUMNS)

    def push(
        self, keys: NDArray[np.float64], told: Sequence[Sequence[float | None]], oldest: NDArray[np.float64]
    ) -> list[list[float | None]]:
        entered = np.array([[value is not None for value in row] for row in told])
        filled = np.array([[math.nan if value is None else value for value in row] for row in told])
        ring = self.ring
        ring.push(Entering(keys, 2.0 * keys, filled, entered))
        firsts = ring.first + ring.rows(ring.first, ring.stop).keys.searchsorted(oldest, side="right")
        found, known = self.many.push(Pushed(ring, oldest, firsts, entered))
        ring.first = int(firsts[-1])
        known &= entered
        return [
            [value if is_known else None for value, is_known in zip(*row, strict=True)]
            for row in zip(found.tolist(), known.tolist(), strict=True)
        ]


def bits(said: Sequence[Sequence[float | None]]) -> list[list[bytes | None]]:
    """A zero has no sign here: of the largest of 0 and -0 either may be told."""
    return [[None if value is None else struct.pack("d", value + 0.0) for value in row] for row in said]


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=60, deadline=None)
@given(told=rows, width=st.integers(1, 12), cuts=st.lists(st.integers(1, 12), max_size=6))
def test_columns_say_what_windows_say(
    name: str, told: list[list[float | None]], width: int, cuts: Sequence[int]
) -> None:
    if name in ("count", "share"):
        told = [[None if value is None else float(value > 0.0) for value in row] for row in told]
    alone, together = Alone(FUNCTIONS[name]), Together(FUNCTIONS[name])
    keys = np.arange(len(told), dtype=np.float64)
    expected = [alone.push(key, row, key - width) for key, row in zip(keys.tolist(), told, strict=True)]
    found, start = [], 0
    for cut in [*cuts, len(told)]:
        some = slice(start, start + cut)
        if told[some]:
            found += together.push(keys[some], told[some], keys[some] - width)
        start += cut
    assert bits(found) == bits(expected)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(-(2**50), 2**50), min_size=3, max_size=6), st.integers(1, 100_000), st.integers(-40, 28))
def test_a_quotient_of_digits_is_the_nearest_float(digits: list[int], divisor: int, low: int) -> None:
    total = sum(Fraction(digit) * Fraction(2) ** (32 * (place + low)) for place, digit in enumerate(digits))
    # Below them three digits make room for what is divided, and above them two for what is carried.
    row = np.array([[0, 0, 0, *digits, 0, 0]], np.int64)
    (found,) = quotients(row, np.array([divisor]), 32 * (low - 3)).tolist()
    try:
        expected = float(total / divisor)
    except OverflowError:
        expected = math.inf if total > 0 else -math.inf
    assert found == expected


def test_what_has_left_makes_room() -> None:
    together = Together(FUNCTIONS["median"])
    for start in range(0, 10_000, 10):
        keys = np.arange(start, start + 10, dtype=np.float64)
        together.push(keys, [[1.0] * COLUMNS] * 10, keys - 20)
    assert together.ring.stop - together.ring.first == 20
    assert len(together.ring._rows.keys) < 100
