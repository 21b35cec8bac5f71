"""What every way to measure is held against: numpy.frexp and sums in float64, on values of all kinds."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scalescope.numerics.exponents import BINS, MIN_EXPONENT, Histograms


def expected(values: NDArray[np.float64]) -> Histograms:
    """The definition, from numpy.frexp: abs(x) = m 2**e with m in [0.5, 1), so the bin is e - 1."""
    flat = np.asarray(values, np.float64).reshape(-1)
    nan, magnitude = np.isnan(flat), np.abs(flat)
    inf = magnitude >= 2.0**128
    zero = magnitude < 2.0**MIN_EXPONENT
    normal = magnitude[~(nan | inf | zero)]
    counts = np.bincount(np.frexp(normal)[1] - 1 - MIN_EXPONENT, minlength=BINS).astype(np.int64)
    finite = magnitude[np.isfinite(flat)]
    return Histograms(
        counts[None],
        np.array([zero.sum()]),
        np.array([inf.sum()]),
        np.array([nan.sum()]),
        np.array([finite.max(initial=0.0)]),
        np.array([np.square(finite).sum()]),
    )


def assert_same(found: Histograms, wanted: Histograms) -> None:
    for name in ("counts", "zero", "inf", "nan", "amax"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
    np.testing.assert_allclose(found.sum_squares, wanted.sum_squares, rtol=1e-5)


def mixed(size: int, seed: int) -> torch.Tensor:
    """fp32 values over the whole range, with zeros of both signs, subnormals, infinities and NaNs."""
    rng = np.random.default_rng(seed)
    values = (np.exp2(rng.uniform(-126, 127, size)) * rng.choice([-1, 1], size)).astype(np.float32)
    kind = rng.integers(0, 12, size)
    values[kind == 0] = 0.0
    values[kind == 1] = -0.0
    values[kind == 2] = np.inf
    values[kind == 3] = -np.inf
    values[kind == 4] = np.nan
    subnormal = rng.integers(1, 1 << 23, size, dtype=np.uint32).view(np.float32)
    return torch.from_numpy(np.where(kind == 5, subnormal, values))
