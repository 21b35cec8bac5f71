"""Absorbed updates, against exact arithmetic and numpy's casts."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scalescope.numerics.absorbed import absorbed, rounded
from scalescope.numerics.formats import BF16, FP16, FloatFormat

FORMATS = {torch.float16: FP16, torch.bfloat16: BF16}
both = pytest.mark.parametrize("dtype", FORMATS, ids=["fp16", "bf16"])


def nearest(value: Fraction, target: FloatFormat) -> Fraction | None:
    """The value of ``target`` nearest to ``value``, ties to even, in exact arithmetic; None: infinite."""
    exponent = target.min_normal_exponent
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    spacing = Fraction(2) ** (exponent - target.fraction_bits)
    found = round(value / spacing) * spacing
    return found if abs(found) <= Fraction(target.max_finite) else None


def truth(weight: float, update: float, dtype: torch.dtype) -> bool:
    held = nearest(Fraction(weight), FORMATS[dtype])
    return held is None or nearest(held + Fraction(update), FORMATS[dtype]) == held


def one(weight: float, update: float, dtype: torch.dtype) -> bool:
    weights, updates = torch.tensor([[weight], [update]], dtype=torch.float64)
    return bool(absorbed(weights, updates, dtype))


def log_uniform(low: float, high: float, size: int, seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return np.asarray(np.exp2(rng.uniform(low, high, size)) * rng.choice([-1.0, 1.0], size))


def test_the_worked_example_is_absorbed_in_fp16() -> None:
    assert one(1.5, -(2.0**-12), torch.float16)
    assert not one(1.5, -(2.0**-10), torch.float16)


@both
def test_a_tie_is_absorbed_by_an_even_weight_alone(dtype: torch.dtype) -> None:
    spacing = 2.0 ** -FORMATS[dtype].fraction_bits
    assert one(1.0, spacing / 2, dtype)
    assert not one(1.0 + spacing, spacing / 2, dtype)
    # Below a power of two the values lie twice as close.
    assert one(1.0, -spacing / 4, dtype)
    assert not one(1.0, -spacing / 2, dtype)


@both
def test_an_update_just_over_a_tie_is_felt_though_a_cast_through_fp32_lands_on_it(dtype: torch.dtype) -> None:
    update = 2.0 ** -(FORMATS[dtype].fraction_bits + 1) * (1 + 2.0**-23)
    assert (torch.tensor([1.0 + update], dtype=torch.float64)).to(dtype).item() == 1.0
    assert not one(1.0, update, dtype)


@both
def test_zeros_infinities_and_nans(dtype: torch.dtype) -> None:
    assert one(1.0, 0.0, dtype)
    assert one(0.0, 2.0 ** FORMATS[dtype].flush_exponent, dtype)
    assert one(float("inf"), 1.0, dtype)
    assert not one(float("nan"), 1.0, dtype)
    assert not one(1.0, float("nan"), dtype)
    assert not one(FORMATS[dtype].max_finite, FORMATS[dtype].max_finite, dtype)


narrow = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)


@both
@settings(deadline=None)
@given(weight=narrow, share=st.floats(-4.0, 4.0, width=32), fraction=st.integers(-13, -5))
def test_the_answer_is_that_of_exact_arithmetic(dtype: torch.dtype, weight: float, share: float, fraction: int) -> None:
    # About as large as a spacing: where the answer is in doubt.
    update = float(np.float32(weight * share * 2.0**fraction)) if abs(weight) < 2.0**100 else 1.0
    assert one(weight, update, dtype) == truth(weight, update, dtype)


@both
@settings(deadline=None)
@given(
    whole=st.integers(-4096, 4096),
    half=st.integers(-8, 8),
    exponent=st.integers(-40, 10),
    rest=st.sampled_from([-1, 0, 1]),
)
def test_ties_and_their_neighbours_are_told_apart(
    dtype: torch.dtype, whole: int, half: int, exponent: int, rest: int
) -> None:
    weight, update = whole * 2.0**exponent, half * 2.0 ** (exponent - 1) * (1 + rest * 2.0**-23)
    assert one(weight, update, dtype) == truth(weight, update, dtype)


def test_rounding_to_fp16_is_numpys_cast_of_float64() -> None:
    found = np.concatenate([log_uniform(-30, 17, 50_000, 0), (np.arange(-5000, 5000) + 0.5) * 2.0**-24])
    with np.errstate(over="ignore"):
        expected = found.astype(np.float16)
    np.testing.assert_array_equal(rounded(torch.from_numpy(found), torch.float16).numpy(), expected)


def test_weights_of_every_dtype_are_rounded_once() -> None:
    weights, updates = torch.from_numpy(log_uniform(-3, 3, 5000, 1)), torch.from_numpy(log_uniform(-14, -6, 5000, 2))
    for stored in (torch.float32, torch.bfloat16, torch.float16):
        held = weights.to(stored)
        for dtype in FORMATS:
            assert torch.equal(absorbed(held, updates, dtype), absorbed(held.double(), updates, dtype))
