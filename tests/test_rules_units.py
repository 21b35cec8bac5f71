"""What may stand beside what: units of values that are compared, added, multiplied and divided."""

from __future__ import annotations

import pytest
from scalescope_server.rules.errors import SentenceError
from scalescope_server.rules.parsing import parse


@pytest.mark.parametrize(
    "sentence",
    [
        "flush_share > 20%",
        "flush_share > 0.2",
        "flush_share > 1",
        "flush_share > 2 * subnormal_share + 1%",
        "1 - zero_share < 5%",
        "subnormal_share / (1 - zero_share) > 20%",
        "subnormal_share / (1 - zero_share) > 0.2",
        "update_ratio > 1e-3",
        "update_ratio > 0.1%",
        "step_ms > 500",
        "step_ms > 500 ms",
        "step_ms > 2 * median(step_ms, 100 steps)",
        "hook_ms / step_ms > 1%",
        "hook_ms > 1% * step_ms",
        "loss > 99% * median(loss, 100 steps)",
        "val_loss > 5%",
        "val_ms > 5 ms",
        "mean(skipped, 100 steps) > 5%",
        "sum(skipped, 100 steps) > 5",
        "count(skipped, 10 steps) / count(applied, 10 steps) > 5%",
        "rate(skipped, 100 steps) > 5%",
        "rate(tokens, 1 min) < 1e5",
        "skipped == 1",
        "mean by rank(skipped) > 50%",
        "sum by layer(zero_share) > 3",
        "zscore(step_ms, 100 steps) > 3",
    ],
)
def test_what_fits_may_be_compared(sentence: str) -> None:
    parse(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "flush_share > 20",
        "flush_share + 20 > 5%",
        "flush_share > scale",
        "scale > 20%",
        "scale > 5 ms",
        "step_ms > 20%",
        "step_ms > loss",
        "changes(zero_share, 10 steps) > 20%",
        "sum(skipped, 100 steps) > 5%",
        "count(skipped, 10 steps) > 5%",
        "rate(skipped, 100 steps) > 5",
        "zscore(step_ms, 100 steps) > 3 ms",
        "log2(zero_share) > 5%",
    ],
)
def test_what_does_not_fit_is_refused(sentence: str) -> None:
    with pytest.raises(SentenceError, match="expected a"):
        parse(sentence)
