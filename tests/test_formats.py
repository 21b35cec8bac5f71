"""Each edge in formats.py against a real cast."""

from __future__ import annotations

import math

import pytest
import torch
from scalescope.numerics.formats import BF16, E4M3FN, E5M2, FORMATS, FP16, FP32, FloatFormat, format_named, known_format

CASTS = {FP16: torch.float16, BF16: torch.bfloat16, FP32: torch.float32, E5M2: torch.float8_e5m2}


def cast(value: float, target: FloatFormat) -> float:
    """A real cast. From fp32, except to fp32: torch casts float64 to fp16 in two roundings."""
    source = torch.float64 if target is FP32 else torch.float32
    return float(torch.tensor(value, dtype=source).to(CASTS[target]).double())


def just_below(value: float, target: FloatFormat) -> float:
    source = torch.float64 if target is FP32 else torch.float32
    return float(torch.nextafter(torch.tensor(value, dtype=source), torch.tensor(0.0, dtype=source)))


@pytest.mark.parametrize("target", CASTS, ids=lambda target: target.name)
def test_a_cast_flushes_up_to_the_flush_edge_and_not_beyond(target: FloatFormat) -> None:
    edge = 2.0**target.flush_exponent
    assert cast(edge, target) == 0.0
    assert cast(edge * 1.01, target) == 2.0**target.min_subnormal_exponent


@pytest.mark.parametrize("target", CASTS, ids=lambda target: target.name)
def test_a_cast_overflows_from_the_overflow_edge(target: FloatFormat) -> None:
    assert math.isinf(cast(target.overflow_from, target))
    assert cast(just_below(target.overflow_from, target), target) == target.max_finite
    assert cast(target.max_finite, target) == target.max_finite


@pytest.mark.parametrize("target", FORMATS.values(), ids=lambda target: target.name)
def test_the_spacing_and_the_smallest_normal_follow_from_the_bits(target: FloatFormat) -> None:
    dtype = {**CASTS, E4M3FN: torch.float8_e4m3fn}[target]
    info = torch.finfo(dtype)
    assert info.tiny == 2.0**target.min_normal_exponent
    assert info.eps == 2.0**-target.fraction_bits
    assert info.max == target.max_finite


def test_e4m3_counts_an_overflow_before_the_cast() -> None:
    assert E4M3FN.overflow_from > 448.0
    assert math.nextafter(448.0, math.inf) == E4M3FN.overflow_from


@pytest.mark.parametrize(
    ("name", "target"), [("fp16", FP16), ("torch.float16", FP16), ("bfloat16", BF16), ("float32", FP32)]
)
def test_a_format_is_found_by_its_name_and_by_its_dtype(name: str, target: FloatFormat) -> None:
    assert format_named(name) is target


@pytest.mark.parametrize("name", [None, "", "fp7", "float64"])
def test_a_format_that_we_know_no_limits_of_is_none(name: str | None) -> None:
    assert known_format(name) is None
    assert known_format("torch.float16") is FP16


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="one of fp16, bf16, fp32, e4m3fn, e5m2, got 'fp7'"):
        format_named("fp7")
