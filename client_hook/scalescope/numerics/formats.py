"""The floating-point formats of mixed-precision training and the exact edges of their ranges.

Every edge is a power of two or a plain float, so a share read from an exponent histogram can be exact.
Values: IEEE 754-2019 (fp16, fp32), the bfloat16 and OCP 8-bit (E4M3, E5M2) definitions; each is checked
in the tests against a real cast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """One format: its exponent range and what rounding to nearest-even does at both ends.

    Attributes:
        name: the name used in messages, answers and settings ("fp16", "bf16", ...).
        fraction_bits: explicit bits of the significand; the spacing in [1, 2) is ``2 ** -fraction_bits``.
        min_normal_exponent: the smallest normal value is ``2 ** min_normal_exponent``.
        max_finite: the largest finite value.
        overflow_from: the smallest magnitude that a cast does not keep finite. For e4m3fn, which has no
            infinity and which newer torch saturates, overflow is counted before the cast: anything above 448.
    """

    name: str
    fraction_bits: int
    min_normal_exponent: int
    max_finite: float
    overflow_from: float

    @property
    def min_subnormal_exponent(self) -> int:
        """Exponent of the smallest positive value."""
        return self.min_normal_exponent - self.fraction_bits

    @property
    def flush_exponent(self) -> int:
        """``0 < abs(x) <= 2 ** flush_exponent`` rounds to zero (the tie goes to the even zero)."""
        return self.min_subnormal_exponent - 1


FP16 = FloatFormat("fp16", 10, -14, 65504.0, 65520.0)
BF16 = FloatFormat("bf16", 7, -126, (2 - 2**-7) * 2.0**127, (2 - 2**-8) * 2.0**127)
FP32 = FloatFormat("fp32", 23, -126, (2 - 2**-23) * 2.0**127, (2 - 2**-24) * 2.0**127)
# The next float64 above 448: "abs(x) > 448" as a closed edge.
E4M3FN = FloatFormat("e4m3fn", 3, -6, 448.0, math.nextafter(448.0, math.inf))
E5M2 = FloatFormat("e5m2", 2, -14, 57344.0, 61440.0)

FORMATS: dict[str, FloatFormat] = {f.name: f for f in (FP16, BF16, FP32, E4M3FN, E5M2)}

_DTYPE_NAMES = {
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float": "fp32",
    "float8_e4m3fn": "e4m3fn",
    "float8_e5m2": "e5m2",
}


def format_named(name: str) -> FloatFormat:
    """The format called ``name``: one of ours ("fp16") or a torch or numpy dtype ("torch.float16").

    Raises:
        ValueError: for a name that is neither, naming the known ones.
    """
    plain = name.removeprefix("torch.")
    found = FORMATS.get(_DTYPE_NAMES.get(plain, plain))
    if found is None:
        raise ValueError(f"expected a float format, one of {', '.join(FORMATS)}, got {name!r}")
    return found


def known_format(name: str | None) -> FloatFormat | None:
    """The same; None for no name, and for one that we know no limits of."""
    try:
        return format_named(name or "")
    except ValueError:
        return None
