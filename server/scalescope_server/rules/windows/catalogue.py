"""The functions over windows by their names in a sentence, and what each says before its window has filled."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from scalescope_server.rules.expression import CountName, OverName
from scalescope_server.rules.windows import Window
from scalescope_server.rules.windows.extremes import Max, Min
from scalescope_server.rules.windows.moves import Change, Changes, Last, Reversals
from scalescope_server.rules.windows.ordered import Quantile
from scalescope_server.rules.windows.rates import Count, Rate, Share
from scalescope_server.rules.windows.totals import Mean, Sum, ZScore


class Function(NamedTuple):
    """How a function is worked out. ``window``: of its share if it is of one.

    ``early``: what its value is while the updates in the window reach over less than half of it. None: it is not
    known, since so few would stand for the whole. 1, -1: it can only grow, or fall, with what is missing, so it decides
    a comparison that this cannot change: six changes in a third of the window are six or more. 0: it is what it is.
    ``finite``: it leaves out what is NaN or infinite, as the series of the API do.
    """

    window: Callable[..., Window]
    early: int | None = None
    finite: bool = True


OVER: dict[OverName, Function] = {
    "last": Function(Last, early=0, finite=False),
    "min": Function(Min, early=-1),
    "max": Function(Max, early=1),
    "mean": Function(Mean),
    "sum": Function(Sum, early=1),
    "median": Function(Quantile),
    "quantile": Function(Quantile),
    "change": Function(Change),
    "changes": Function(Changes, early=1),
    "reversals": Function(Reversals, early=1),
    "rate": Function(Rate),
    "zscore": Function(ZScore),
}
COUNTED: dict[CountName, Function] = {
    "count": Function(Count, early=1, finite=False),
    "rate": Function(Share, finite=False),
}
