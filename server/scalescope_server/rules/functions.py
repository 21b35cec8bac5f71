"""The functions of the language: what each takes, what it says, and an example that parses."""

from __future__ import annotations

from typing import NamedTuple

from scalescope_server.rules.expression import OverName
from scalescope_server.rules.units import Kind


class Function(NamedTuple):
    """``takes``: its arguments in words; ``example``: a whole sentence."""

    takes: str
    says: str
    example: str


OVER: dict[OverName, Function] = {
    "last": Function("a value, a window", "the latest value told in the window", "when last(loss, 50 steps) > 10"),
    "min": Function("a value, a window", "the smallest value", "when min(scale, 500 steps) < 128"),
    "max": Function("a value, a window", "the largest value", "when max(step_ms, 5 min) > 2 s"),
    "mean": Function("a value, a window", "the mean of the values", "when mean(loss, 200 steps) > 8"),
    "sum": Function("a value, a window", "the sum of the values", "when sum(tokens, 1 h) < 1e6"),
    "median": Function(
        "a value, a window",
        "the middle value, of an even number the mean of the middle two",
        "when grad_norm > 4 * median(grad_norm, 500 steps)",
    ),
    "quantile": Function(
        "a value, a share, a window",
        "the value that this share of the values does not exceed, interpolated linearly",
        "when quantile(step_ms, 95%, 1000 steps) > 500 ms",
    ),
    "change": Function(
        "a value, a window", "the latest value less the earliest", "when change(log2(scale), 2000 steps) <= -6"
    ),
    "changes": Function(
        "a value, a window",
        "how many values differ from the one told before them",
        "when changes(scale, 200 steps) >= 6 for 50 steps",
    ),
    "reversals": Function(
        "a value, a window",
        "how often the values turn from rising to falling or back; equal ones are passed over",
        "when reversals(scale, 1000 steps) >= 8",
    ),
    "zscore": Function(
        "a value, a window",
        "by how many standard deviations the latest value is off the mean of those before it in the window",
        "when zscore(loss, 500 steps) > 6",
    ),
}
RATE = Function(
    "a condition or a value, a window",
    "of a condition the share of updates at which it holds; of a value its sum by second",
    "when rate(skipped, 1000 steps) > 5%",
)
COUNT = Function(
    "a condition, a window", "at how many updates the condition holds", "when count(skipped, 200 steps) >= 10"
)
POINTWISE: dict[str, Function] = {
    "abs": Function("a value", "its magnitude", "when abs(change(loss, 100 steps)) > 2"),
    "log2": Function("a value", "its logarithm to base 2: octaves", "when log2(scale) < 4"),
}
ACROSS: dict[str, Function] = {
    "max": Function(
        "a value", "the largest, and whose it is", 'when max by layer(subnormal_share{layer="blocks.*"}) > 20%'
    ),
    "min": Function("a value", "the smallest, and whose it is", "when min by module(forward_headroom) < 1"),
    "mean": Function("a value", "the mean over all that have one", "when mean by layer(zero_share) > 50%"),
    "sum": Function("a value", "the sum over all that have one", "when sum by layer(nonfinite) > 0"),
    "median": Function("a value", "the middle one", "when median by layer(update_ratio) < 1e-6 for 500 steps"),
    "count": Function("a condition", "for how many the condition holds", "when count by rank(skipped) >= 2"),
}
CONDITIONS: dict[str, Function] = {
    "finding": Function("a code", "a finding with this code is open", "when finding(SCALE_THRASH)"),
    "rank disagreement": Function(
        "scale or skipped", "ranks told different values of the same update", "when rank disagreement(scale)"
    ),
}

# What others call them.
SYNONYMS = {
    "avg": "mean",
    "average": "mean",
    "percentile": "quantile",
    "delta": "change",
    "increase": "change",
    "score": "zscore",
    "z_score": "zscore",
    "flips": "reversals",
    "total": "sum",
    "first": "change",
}


def names() -> tuple[str, ...]:
    """Every name that may stand before a parenthesis."""
    return (*OVER, "rate", "count", *POINTWISE, "finding")


def told_in(name: OverName, operand: Kind) -> Kind:
    """What a function over a window is told in."""
    if name in ("changes", "reversals", "zscore"):
        return "number"
    if operand == "flag":
        return "share" if name in ("mean", "median", "quantile") else "number"
    return "number" if name == "sum" and operand == "share" else operand
