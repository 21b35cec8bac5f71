"""The functions over windows by their names in a sentence, and what each says before its window has filled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from scalescope_server.rules.expression import CountName, OverName
from scalescope_server.rules.windows import Window
from scalescope_server.rules.windows.extremes import Max, Min
from scalescope_server.rules.windows.many import Alone, Held, HeldShare, Largest, Many, Newest
from scalescope_server.rules.windows.many_ordered import Quantiles
from scalescope_server.rules.windows.many_totals import Means, Sums
from scalescope_server.rules.windows.moves import Change, Changes, Last, Reversals
from scalescope_server.rules.windows.ordered import Quantile
from scalescope_server.rules.windows.rates import Count, Rate, Share
from scalescope_server.rules.windows.totals import Mean, Sum, ZScore


class Function(NamedTuple):
    """How a function is worked out. ``window``: of its share if it is of one. ``many``: the same of so many columns;
    None where each has a window of its own.

    ``early``: what its value is while the updates in the window reach over less than half of it. None: it is not
    known, since so few would stand for the whole. 1, -1: it can only grow, or fall, with what is missing, so it decides
    a comparison that this cannot change: six changes in a third of the window are six or more. 0: it is what it is.
    ``finite``: it leaves out what is NaN or infinite, as the series of the API do.
    """

    window: Callable[..., Window]
    many: Callable[..., Many] | None = None
    early: int | None = None
    finite: bool = True

    def of(self, share: float | None) -> Function:
        """The same of a share, where it is of one."""
        if share is None:
            return self
        many = self.many if self.many is None else partial(self.many, share=share)
        return self._replace(window=partial(self.window, share=share), many=many)

    def columns(self, number: int) -> Many:
        """Windows of so many columns."""
        return Alone(number, self.window) if self.many is None else self.many(number)


OVER: dict[OverName, Function] = {
    "last": Function(Last, Newest, early=0, finite=False),
    "min": Function(Min, partial(Largest, sign=-1.0), early=-1),
    "max": Function(Max, Largest, early=1),
    "mean": Function(Mean, Means),
    "sum": Function(Sum, Sums, early=1),
    "median": Function(Quantile, Quantiles),
    "quantile": Function(Quantile, Quantiles),
    "change": Function(Change),
    "changes": Function(Changes, early=1),
    "reversals": Function(Reversals, early=1),
    "rate": Function(Rate),
    "zscore": Function(ZScore),
}
COUNTED: dict[CountName, Function] = {
    "count": Function(Count, Held, early=1, finite=False),
    "rate": Function(Share, HeldShare, finite=False),
}
