"""Random sentences for property tests: trees that a sentence can say, of any form, each well typed."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st
from scalescope_server.rules.expression import (
    MOST_UPDATES,
    Across,
    AcrossName,
    And,
    Arithmetic,
    ArithmeticSign,
    Comparison,
    ComparisonSign,
    Condition,
    Counted,
    Duration,
    Each,
    Expression,
    Finding,
    Flag,
    Matching,
    Measured,
    Negative,
    Nonfinite,
    Not,
    NoUpdate,
    Number,
    OfRanks,
    Often,
    Or,
    Over,
    Pointwise,
    RankDisagreement,
    RunIs,
    Seconds,
    Series,
    Updates,
    Value,
)
from scalescope_server.rules.functions import OVER
from scalescope_server.rules.names import CODES, COMPARED, MEASURES, RANKED, SERIES
from scalescope_server.rules.ticks import RunState

_NAMES = st.text(min_size=1, max_size=12).filter(lambda name: name not in SERIES)
_finite = st.floats(allow_nan=False, allow_infinity=False).map(lambda value: value + 0.0)
_plain = [name for name, quantity in SERIES.items() if quantity in ("number", "any")]
_numbers = [name for name, named in MEASURES.items() if named.quantity in ("number", "any")]

durations: st.SearchStrategy[Duration] = st.builds(Updates, st.integers(1, MOST_UPDATES)) | st.builds(
    Seconds, st.floats(0.001, 86_400) | st.integers(1, 86_400).map(float)
)
seconds = st.builds(Seconds, st.integers(1, 86_400).map(float))


def _leaf(by: Each | None) -> st.SearchStrategy[Value]:
    """A value told in plain numbers, one for each of ``by`` where it can be."""
    of_run = st.builds(Series, st.sampled_from(_plain) | _NAMES)
    if by == "rank":
        return st.just(OfRanks("scale"))
    if by is not None:
        rows = [name for name in _numbers if MEASURES[name].rows == by]
        return st.builds(Measured, st.sampled_from(rows), st.just("*") | _globs, st.just("") | _globs)
    return of_run


_globs = st.text(min_size=1, max_size=8).filter(lambda glob: glob != "*" and "[" not in glob)


def _values(by: Each | None, depth: int) -> st.SearchStrategy[Value]:
    """Each form of a value; its leftmost leaf is one for each of ``by``, so that all of it is."""
    leaf = _leaf(by)
    if depth == 0:
        return leaf
    inner = _values(by, depth - 1)
    forms = [
        leaf,
        st.builds(Negative, inner),
        st.builds(Pointwise, st.sampled_from(["abs", "log2"]), inner),
        st.builds(Arithmetic, st.sampled_from(get_args(ArithmeticSign)), inner, inner | st.builds(Number, _finite)),
        st.builds(Over, st.sampled_from([name for name in OVER if name != "quantile"]), inner, durations),
        st.builds(Over, st.just("quantile"), inner, durations, st.floats(0, 1)),
        st.builds(Over, st.just("rate"), inner, durations),
        st.builds(Counted, st.just("count"), _conditions(by, depth - 1, timed=False), durations),
    ]
    if by is None:
        forms += [_across(each, depth - 1) for each in get_args(Each)]
    return st.one_of(forms)


def _across(by: Each, depth: int) -> st.SearchStrategy[Value]:
    across = st.builds(Across, st.sampled_from(get_args(AcrossName)), st.just(by), _values(by, depth))
    return across | st.builds(Matching, st.just(by), _conditions(by, depth, timed=False))


def _conditions(by: Each | None, depth: int, *, timed: bool) -> st.SearchStrategy[Condition]:
    """``timed``: with those that time alone tells, which stand in no window."""
    value = _values(by, max(depth - 1, 0))
    compared: st.SearchStrategy[Condition] = st.builds(
        Comparison, st.sampled_from(get_args(ComparisonSign)), value, value | st.builds(Number, _finite)
    ) | st.builds(Nonfinite, value)
    if depth == 0:
        return compared
    inner = _conditions(by, depth - 1, timed=timed)
    often = st.integers(1, 100).flatmap(
        lambda most: st.builds(Often, _conditions(by, depth - 1, timed=False), st.integers(1, most), st.just(most))
    )
    forms = [
        compared,
        often,
        st.builds(Not, inner),
        st.builds(And, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(Or, st.lists(inner, min_size=2, max_size=3).map(tuple)),
    ]
    if by is None:
        forms += [
            st.builds(Flag, st.builds(Series, st.sampled_from(["skipped", "applied"]))),
            st.builds(Finding, st.sampled_from(CODES)),
            st.builds(RankDisagreement, st.sampled_from(COMPARED)),
        ]
    if by == "rank":
        forms.append(st.builds(Flag, st.builds(OfRanks, st.sampled_from(RANKED[1:]))))
    if timed:
        forms += [st.builds(NoUpdate, seconds), st.builds(RunIs, st.sampled_from(get_args(RunState)))]
    return st.one_of(forms)


def percents() -> st.SearchStrategy[Condition]:
    """Shares and times beside what is told in them."""
    share = st.builds(Number, st.floats(-1, 1), st.just("%"))
    times = st.builds(Number, _finite, st.just("ms"))
    rates = st.builds(Counted, st.just("rate"), _conditions(None, 1, timed=False), durations)
    sign = st.sampled_from(get_args(ComparisonSign))
    return st.builds(Comparison, sign, st.just(Series("flush_share")) | rates, share) | st.builds(
        Comparison, sign, st.just(Series("step_ms")), times
    )


conditions = _conditions(None, 3, timed=True) | percents()
expressions = st.builds(Expression, conditions, st.none() | durations, st.none() | durations)
