"""Random updates and random rules over them, for properties that hold of all."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Literal, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from scalescope_server.rules import expression as tree
from scalescope_server.rules.signals.signal import HOLD_UPDATES
from scalescope_server.rules.ticks import Tick

Key = TypeVar("Key")

# Few values, so that series tie, repeat and turn; some that no sum of floats survives.
NUMBERS = [0.0, 1.0, 2.0, 2.0, 3.0, -1.0, 0.1, 1e16, 1e-30, math.nan, math.inf, -math.inf]
NAMES = ["a.bias", "a.weight", "b.weight"]
CODES = ["SCALE_THRASH", "SCALE_ZERO"]

windows: SearchStrategy[tree.Duration] = st.one_of(
    st.sampled_from([1, 2, 3, 5, 8, 12]).map(tree.Updates), st.sampled_from([1.0, 5.0, 20.0, 60.0]).map(tree.Seconds)
)


def ticks_of(seed: int, count: int) -> list[Tick]:
    """``count`` updates of a run: gaps in steps and time, starts anew, values told and not."""
    draw = random.Random(seed)
    made: list[Tick] = []
    segment, step, at = 0, draw.randrange(5), 1000.0
    told = draw.choice([0.2, 0.8, 1.0])
    for _ in range(count):
        made.append(
            Tick(
                segment,
                step,
                at,
                {"loss": draw.choice(NUMBERS) if draw.random() < told else None, "skipped": draw.choice([0.0, 1.0])}
                | ({"own": draw.choice(NUMBERS)} if draw.random() < told else {}),
                {"amax": _some(draw, NAMES)} if draw.random() < told else {},
                {"scale": _some(draw, [0, 1, 2])} if draw.random() < told else {},
                frozenset(code for code in CODES if draw.random() < 0.3),
            )
        )
        if draw.random() < 0.1:
            # An older start of the trainer may reach beyond the first step of the next.
            segment, step = segment + 1, max(0, step - 2)
        step += draw.choice([1, 1, 1, 1, 1, 1, 3, HOLD_UPDATES if draw.random() < 0.3 else 1])
        at += draw.choice([0.0, 0.5, 1.0, 1.0, 1.0, 30.0])
    return made


def _some(draw: random.Random, keys: Sequence[Key]) -> dict[Key, float]:
    return {key: draw.choice(NUMBERS) for key in keys if draw.random() < 0.7}


def ticks(most: int = 40) -> SearchStrategy[list[Tick]]:
    # Drawn by a seed: to draw each value costs more than all that is done with it.
    return st.builds(ticks_of, st.integers(0, 2**32), st.integers(1, most))


_over = st.sampled_from(
    ["last", "min", "max", "mean", "sum", "median", "change", "changes", "reversals", "rate", "zscore"]
)


def values(leaf: SearchStrategy[tree.Value], condition: SearchStrategy[tree.Condition]) -> SearchStrategy[tree.Value]:
    def wider(part: SearchStrategy[tree.Value]) -> SearchStrategy[tree.Value]:
        return st.one_of(
            st.builds(tree.Negative, part),
            st.builds(tree.Pointwise, st.sampled_from(["abs", "log2"]), part),
            st.builds(tree.Arithmetic, st.sampled_from(["+", "-", "*", "/"]), part | _constants, part | _constants),
            st.builds(tree.Over, _over, part, windows),
            st.builds(tree.Over, st.just("quantile"), part, windows, st.sampled_from([0.0, 0.25, 0.9, 1.0])),
            st.builds(tree.Counted, st.sampled_from(["count", "rate"]), condition, windows),
        )

    return st.recursive(leaf, wider, max_leaves=3)


def conditions(leaf: SearchStrategy[tree.Value], flag: SearchStrategy[tree.Flag]) -> SearchStrategy[tree.Condition]:
    """Conditions of what ``leaf`` is of: the run, or each."""
    signs = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])

    def of(part: SearchStrategy[tree.Value]) -> SearchStrategy[tree.Condition]:
        return st.one_of(
            st.builds(tree.Comparison, signs, part, part | _constants),
            st.builds(tree.Nonfinite, part),
            flag,
            st.builds(tree.Finding, st.sampled_from(CODES)),
            st.builds(tree.Comparison, signs, _constants, _constants),
        )

    simple = of(leaf)
    often = st.integers(1, 8).flatmap(lambda n: st.builds(tree.Often, simple, st.integers(1, n), st.just(n)))
    first = of(values(leaf, simple)) | often

    def wider(part: SearchStrategy[tree.Condition]) -> SearchStrategy[tree.Condition]:
        several = st.tuples(part, part)
        return st.one_of(st.builds(tree.Not, part), st.builds(tree.And, several), st.builds(tree.Or, several))

    return st.recursive(first, wider, max_leaves=3)


_constants: SearchStrategy[tree.Value] = st.sampled_from([0.0, 1.0, 2.0, 0.1]).map(tree.Number)
_series: SearchStrategy[tree.Value] = st.sampled_from(["loss", "own", "skipped"]).map(tree.Series)
_measured: SearchStrategy[tree.Value] = st.builds(
    tree.Measured, st.just("amax"), st.sampled_from(["*", "a.*"]), st.sampled_from(["", "*.bias"])
)
_ranks: SearchStrategy[tree.Value] = st.just(tree.OfRanks("scale"))

of_run = conditions(_series, st.just(tree.Flag(tree.Series("skipped")))) | st.builds(
    tree.Finding, st.sampled_from(CODES)
)
# Of windows alone, which reach back no farther: no value is held for its own sake.
_in_window = st.builds(tree.Over, _over, _series, windows)
_counted = st.builds(
    tree.Counted, st.just("count"), st.builds(tree.Comparison, st.just(">"), _series, _constants), windows
)
of_windows = st.builds(
    tree.Comparison,
    st.sampled_from([">", "<="]),
    _in_window | st.builds(tree.Over, _over, _in_window, windows) | _counted,
    _constants,
)
_matching_signs = st.sampled_from([">", "<="])


def _across(
    by: Literal["layer", "rank"], of_each: SearchStrategy[tree.Value], leaf: SearchStrategy[tree.Value], flag: tree.Flag
) -> SearchStrategy[tree.Condition]:
    """Conditions that make one answer of what layers or ranks say; what is of the run is everyone's among them."""
    condition = conditions(leaf, st.just(flag))
    for_each = st.builds(tree.Comparison, _matching_signs, of_each, _constants)
    matching = st.builds(tree.Matching, st.just(by), st.builds(tree.And, st.tuples(for_each, condition)) | for_each)
    value = st.builds(tree.Arithmetic, st.just("+"), of_each, values(leaf, condition)) | of_each
    function: SearchStrategy[tree.AcrossName] = st.sampled_from(["max", "min", "mean", "sum", "median"])
    across = st.builds(tree.Across, function, st.just(by), value)
    return st.builds(tree.Comparison, _matching_signs, matching | across, _constants)


of_layers = _across("layer", _measured, _measured | _series, tree.Flag(tree.Series("skipped")))
of_ranks = _across("rank", _ranks, _ranks, tree.Flag(tree.OfRanks("scale"))) | st.just(tree.RankDisagreement("scale"))
any_condition = of_run | of_layers | of_ranks
