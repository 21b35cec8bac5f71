"""Functions over windows: of what is told anew at an update, held until it is told again or has left the window."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalescope_server.rules.expression import MOST_UPDATES, Duration, Updates
from scalescope_server.rules.signals.signal import Column, Moving, Now, Signal, Span, columns_of
from scalescope_server.rules.windows import Window
from scalescope_server.rules.windows.rates import Rate
from scalescope_server.rules.windows.totals import Totals

# So few are sooner added one by one than all that a window may hold is looked at.
_FEW_KEYS = 64


class Ruler:
    """A window's measure: of updates by their places, or of time."""

    __slots__ = ("by_time", "width")

    def __init__(self, duration: Duration) -> None:
        self.by_time = not isinstance(duration, Updates)
        self.width = float(duration.count if isinstance(duration, Updates) else duration.seconds)

    def key(self, now: Now) -> float:
        return now.at if self.by_time else now.place

    def keys(self, span: Span) -> NDArray[np.float64]:
        return span.at if self.by_time else span.place.astype(np.float64)


class Reached(NamedTuple):
    """``oldest`` and ``full`` of a reach at each update of a stretch: float64[n], bool[n]."""

    oldest: NDArray[np.float64]
    full: NDArray[np.bool_]


class Reach(Moving):
    """How far back a window reaches, whatever was told at its updates: over its width, and at most so many of them.

    ``oldest``: what was told at that key or before has left it. ``full``: whether its updates reach over half of its
    width or more, or are as many as may be. ``column``: both over the last stretch.
    """

    __slots__ = ("_keys", "_most", "column", "full", "oldest", "ruler")

    def __init__(self, ruler: Ruler) -> None:
        super().__init__()
        self.ruler = ruler
        self.oldest = -math.inf
        self.full = False
        self._most = MOST_UPDATES
        self._keys: deque[float] = deque()
        self.column: Reached | None = None

    def tick(self, now: Now) -> None:
        if now.is_update:
            self._move(self.ruler.key(now))

    def _move(self, key: float) -> None:
        keys = self._keys
        keys.append(key)
        # Of updates at one time some may be too many: the others leave with them, and do not come back.
        self.oldest = oldest = max(
            self.oldest, key - self.ruler.width, keys.popleft() if len(keys) > self._most else -math.inf
        )
        while len(keys) > 1 and keys[0] <= oldest:
            keys.popleft()
        reached = key - keys[0] + (not self.ruler.by_time)
        self.full = 2.0 * reached >= self.ruler.width or len(keys) >= self._most

    def over(self, span: Span) -> None:
        keys = self.ruler.keys(span)
        self.column = self._each(keys) if len(keys) < _FEW_KEYS else self._all(keys)

    def _each(self, keys: NDArray[np.float64]) -> Reached:
        """One by one."""
        reached = []
        for key in keys.tolist():
            self._move(key)
            reached.append((self.oldest, self.full))
        oldest, full = zip(*reached, strict=True)
        return Reached(np.array(oldest), np.array(full))

    def _all(self, keys: NDArray[np.float64]) -> Reached:
        known = np.concatenate((np.array(self._keys, np.float64), keys))
        places = np.arange(len(self._keys), len(known))
        too_many = np.where(places >= self._most, known[np.maximum(places - self._most, 0)], self.oldest)
        oldest = np.maximum(too_many, keys - self.ruler.width)
        first = np.minimum(np.searchsorted(known, oldest, side="right"), places)
        reached = keys - known[first] + (not self.ruler.by_time)
        full = (2.0 * reached >= self.ruler.width) | (places + 1 - first >= self._most)
        self._keys = deque(known[int(first[-1]) :].tolist())
        self.oldest, self.full = float(oldest[-1]), bool(full[-1])
        return Reached(oldest, full)

    def settle(self) -> None:
        self.column = None


class _Telling(NamedTuple):
    """The values that were told in a stretch: their keys, what had left the window by then, and their times: [m]."""

    keys: NDArray[np.float64]
    values: NDArray[np.float64] | NDArray[np.bool_]
    oldest: NDArray[np.float64]
    at: NDArray[np.float64]


class _Said(NamedTuple):
    """What a window says after each of m values told in a stretch, and first what it said before: each [m + 1].

    ``newest``: the key of the last value that has entered it.
    """

    values: NDArray[np.float64]
    known: NDArray[np.bool_]
    bound: NDArray[np.int8]
    newest: NDArray[np.float64]


class Windowed(Signal):
    """A function of what a signal told in a window.

    ``early``: what its value is before the window has filled to a half: None, not known; 0, what it says; 1 or -1, see
    ``Signal.bound``. ``finite``: whether it leaves out what is NaN or infinite.
    """

    __slots__ = ("_early", "_finite", "_newest", "_of", "_reach", "_ruler", "_window")

    def __init__(self, of: Signal, window: Window, reach: Reach, *, early: int | None, finite: bool) -> None:
        super().__init__()
        self._of = of
        self._window = window
        self._reach = reach
        self._ruler = reach.ruler
        self._early = early
        self._finite = finite
        self._newest = -math.inf

    def tick(self, now: Now) -> None:
        if not now.is_update:
            return
        of, key = self._of, self._ruler.key(now)
        if of.fresh and of.value is not None and not of.bound:
            self._tell(key, of.value, now.at)
            return
        self.fresh = self.moved = False
        if self.value is not None and self._newest <= self._reach.oldest:
            self.value, self.moved = None, True

    def _tell(self, key: float, told: float, at: float) -> None:
        window, oldest = self._window, self._reach.oldest
        if self._finite and told - told != 0.0:
            value = window.slide(oldest)
        else:
            if isinstance(window, Rate):
                window.at = at
            value = window.push(key, told, oldest)
            self._newest = key
        bound = 0
        if not self._reach.full:
            value, bound = (None, 0) if self._early is None else (value, self._early)
        self.moved = value != self.value or bound != self.bound
        self.value, self.bound, self.fresh = value, bound, value is not None

    def stretch(self, span: Span) -> Column:
        (of,), keys, reached = columns_of([self._of]), self._ruler.keys(span), self._reach.column
        assert reached is not None
        told = np.flatnonzero(of.fresh & of.known & (of.bound == 0))
        telling = _Telling(keys[told], of.values[told], reached.oldest[told], span.at[told])
        said = self._said(telling, reached.full[told])
        latest = np.zeros(len(span), np.intp)
        latest[told] = np.arange(1, len(told) + 1)
        latest = np.maximum.accumulate(latest)
        fresh = np.zeros(len(span), np.bool_)
        fresh[told] = said.known[1:]
        in_window = said.newest[latest] > reached.oldest
        self._newest = float(said.newest[-1])
        return Column(said.values[latest], said.known[latest] & in_window, fresh, said.bound[latest])

    def _said(self, told: _Telling, full: NDArray[np.bool_]) -> _Said:
        entered = np.isfinite(told.values) if self._finite else np.ones(len(full), np.bool_)
        results = self._results(told, entered)
        known = np.array([result is not None for result in results], np.bool_)
        if self._early is None:
            known &= full
        return _Said(
            _after(self.value, np.array(results, np.float64)),
            _after(self.value is not None, known),
            _after(self.bound, np.where(full, 0, self._early or 0)).astype(np.int8),
            np.maximum.accumulate(_after(self._newest, np.where(entered, told.keys, -np.inf))),
        )

    def _results(self, told: _Telling, entered: NDArray[np.bool_]) -> list[float | None]:
        """What the window says after each value that was told."""
        window = self._window
        if isinstance(window, Rate):
            return [_timed(window, *one) for one in _rows(*told, entered)]
        if isinstance(window, Totals) and entered.all():
            return window.push_all(told.keys, told.values, told.oldest)
        push, slide, rows = window.push, window.slide, _rows(told.keys, told.values, told.oldest, entered)
        if entered.all():
            return [push(key, value, oldest) for key, value, oldest, _ in rows]
        return [push(key, value, oldest) if enters else slide(oldest) for key, value, oldest, enters in rows]


def _after(first: float | None, rest: NDArray[Any]) -> NDArray[Any]:
    """None becomes NaN."""
    return np.concatenate((np.array([first], rest.dtype), rest))


def _timed(window: Rate, key: float, value: float, oldest: float, at: float, enters: bool) -> float | None:
    if not enters:
        return window.slide(oldest)
    window.at = at
    return window.push(key, value, oldest)


def _rows(*columns: NDArray[Any]) -> Iterator[Any]:
    return zip(*(column.tolist() for column in columns), strict=True)
