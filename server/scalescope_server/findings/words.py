"""How findings write numbers: powers of two as powers, shares in percent, counts with their noun."""

from __future__ import annotations

import math


def scale_text(scale: float) -> str:
    """``2^19`` for a power of two, else three significant digits."""
    exponent = _exponent(scale)
    return f"{scale:.3g}" if exponent is None else f"2^{exponent}"


def scale_code(scale: float) -> str:
    """The same as Python would write it in a call."""
    exponent = _exponent(scale)
    return f"{scale:g}" if exponent is None else f"2.0**{exponent}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.0005 else f"{100 * share:.2g} %"


def times(count: int, noun: str) -> str:
    """``1 update``, ``22 updates``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _exponent(scale: float) -> int | None:
    """log2 of a positive power of two, None for any other number."""
    mantissa, exponent = math.frexp(scale)
    return exponent - 1 if mantissa == 0.5 else None
