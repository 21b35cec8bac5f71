"""Numbers as findings write them."""

from __future__ import annotations

import math

import pytest
from scalescope_server.findings.words import percent, scale_code, scale_text, times


@pytest.mark.parametrize(
    ("scale", "text", "code"),
    [
        (65536.0, "2^16", "2.0**16"),
        (1.0, "2^0", "2.0**0"),
        (2.0**-149, "2^-149", "2.0**-149"),
        (1000.0, "1e+03", "1000"),
        (0.0, "0", "0"),
        (math.inf, "inf", "inf"),
        (-2.0, "-2", "-2"),
    ],
)
def test_a_scale_is_a_power_where_it_is_one(scale: float, text: str, code: str) -> None:
    assert scale_text(scale) == text
    assert scale_code(scale) == code


@pytest.mark.parametrize(("share", "text"), [(0.037, "3.7 %"), (0.0, "0 %"), (0.00012, "0.012 %"), (1.0, "100.0 %")])
def test_a_small_share_keeps_its_digits(share: float, text: str) -> None:
    assert percent(share) == text


def test_a_count_agrees_with_its_noun() -> None:
    assert [times(n, "update") for n in (0, 1, 22, 40_000)] == ["0 updates", "1 update", "22 updates", "40,000 updates"]
