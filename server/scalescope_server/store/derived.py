"""The series that the store reads out of every sample of gradients.

Shares are over all parameters of the sample together. Values are those of ``numerics.md``: zeros over elements,
subnormals of each parameter's own compute format over the elements whose format is known, fp16 flushes at the
scale of the step over the non-zeros (the low bound).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.exponents import Histograms, flushed, subnormal
from scalescope.numerics.formats import BF16, E4M3FN, E5M2, FP16, FP32, FloatFormat, known_format

DERIVED = ("zero_share", "subnormal_share", "flush_share", "amax", "grad_norm")

# The position of a format is the code that ``layout.formats`` stores; 0 is "not known". Only append.
_FORMATS: tuple[FloatFormat | None, ...] = (None, FP16, BF16, FP32, E4M3FN, E5M2)


def format_code(name: str | None) -> int:
    """The code under which a compute format is stored; 0 for none, or one that we know no limits of."""
    return _FORMATS.index(known_format(name))


def derive(table: Histograms, formats: NDArray[np.uint8], scale: float | None) -> dict[str, float]:
    """Series name -> value of one sample of gradients, scaled by ``scale``.

    ``formats``: code of each row's compute format, uint8 [rows]. A share of nothing is left out. ``amax`` and
    ``grad_norm`` are divided by the scale; the norm is inf or NaN when a gradient is.
    """
    total = table.total()
    numel, nonzero = float(total.numel[0]), float(total.nonzero[0])
    found = {
        "amax": _unscaled(float(total.amax[0]), scale),
        "grad_norm": _unscaled(_norm(total), scale),
        **_share("zero_share", float(total.zero[0]), numel),
        **_share("flush_share", float(flushed(total, FP16)[0][0]), nonzero),
        **_subnormal_share(table, formats),
    }
    return found if numel else {}


def _share(name: str, part: float, whole: float) -> dict[str, float]:
    return {name: part / whole} if whole else {}


def _subnormal_share(table: Histograms, formats: NDArray[np.uint8]) -> dict[str, float]:
    part = whole = 0.0
    for code in np.unique(formats).tolist():
        limits = _FORMATS[code]
        if limits is None:
            continue
        rows = np.flatnonzero(formats == code)
        of_format = table if len(rows) == table.rows else table.take(rows)
        part += float(subnormal(of_format, limits).sum())
        whole += float(of_format.numel.sum())
    return _share("subnormal_share", part, whole)


def _norm(total: Histograms) -> float:
    if total.nan[0]:
        return math.nan
    return math.inf if total.inf[0] else math.sqrt(float(total.sum_squares[0]))


def _unscaled(value: float, scale: float | None) -> float:
    if scale is None:
        return value
    return value / scale if scale else math.nan
