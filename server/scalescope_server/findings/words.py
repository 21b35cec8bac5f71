"""How findings write numbers: powers of two as powers, shares in percent, counts with their noun."""

from __future__ import annotations

import math


def scale_text(scale: float) -> str:
    """``2^19`` for a power of two, else three significant digits."""
    exponent = math.log2(scale) if scale > 0 else math.nan
    return f"2^{int(exponent)}" if exponent == round(exponent) else f"{scale:.3g}"


def scale_code(scale: float) -> str:
    """The same as Python would write it in a call."""
    exponent = math.log2(scale) if scale > 0 else math.nan
    return f"2.0**{int(exponent)}" if exponent == round(exponent) else f"{scale:g}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.0005 else f"{100 * share:.2g} %"


def times(count: int, noun: str) -> str:
    """``1 update``, ``22 updates``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
