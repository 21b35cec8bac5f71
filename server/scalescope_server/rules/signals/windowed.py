"""Functions over windows: of what is told anew at an update, held until it is told again or has left the window."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalescope_server.rules.expression import Duration, Updates
from scalescope_server.rules.signals.signal import Column, Each, Key, Moving, Now, Signal, Span, columns_of
from scalescope_server.rules.windows import Window
from scalescope_server.rules.windows.rates import Rate


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


class Reach(Moving):
    """Whether the updates in a window reach over half of it or more, whatever was told at them."""

    __slots__ = ("_keys", "column", "full", "ruler")
    by_columns = True

    def __init__(self, ruler: Ruler) -> None:
        super().__init__()
        self.ruler = ruler
        self.full = False
        self._keys: deque[float] = deque()
        self.column: NDArray[np.bool_] | None = None

    def tick(self, now: Now) -> None:
        if not now.is_update:
            return
        key, keys = self.ruler.key(now), self._keys
        keys.append(key)
        oldest = key - self.ruler.width
        while keys[0] <= oldest:
            keys.popleft()
        self.full = 2.0 * (key - keys[0] + (not self.ruler.by_time)) >= self.ruler.width

    def over(self, span: Span) -> None:
        """Move on by all updates of ``span``; ``column`` is ``full`` at each, bool[n]."""
        width = self.ruler.width
        keys = self.ruler.keys(span)
        known = np.concatenate((np.array(self._keys, np.float64), keys))
        first = np.searchsorted(known, keys - width, side="right")
        reached = keys - known[first] + (not self.ruler.by_time)
        self._keys = deque(known[int(first[-1]) :].tolist())
        full: NDArray[np.bool_] = 2.0 * reached >= width
        self.full = bool(full[-1])
        self.column = full


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
        if self.value is not None and self._newest <= key - self._ruler.width:
            self.value, self.moved = None, True

    def _tell(self, key: float, told: float, at: float) -> None:
        window = self._window
        if self._finite and told - told != 0.0:
            value = window.slide(key)
        else:
            if isinstance(window, Rate):
                window.at = at
            value = window.push(key, told)
            self._newest = key
        bound = 0
        if not self._reach.full:
            value, bound = (None, 0) if self._early is None else (value, self._early)
        self.moved = value != self.value or bound != self.bound
        self.value, self.bound, self.fresh = value, bound, value is not None

    def stretch(self, span: Span) -> Column:
        (of,), keys = columns_of([self._of]), self._ruler.keys(span)
        told = np.flatnonzero(of.fresh & of.known & (of.bound == 0))
        said = self._said(told, keys[told], of.values[told], span.at[told])
        latest = np.zeros(len(span), np.intp)
        latest[told] = np.arange(1, len(told) + 1)
        latest = np.maximum.accumulate(latest)
        fresh = np.zeros(len(span), np.bool_)
        fresh[told] = said.known[1:]
        in_window = said.newest[latest] > keys - self._ruler.width
        self._newest = float(said.newest[-1])
        return Column(said.values[latest], said.known[latest] & in_window, fresh, said.bound[latest])

    def _said(
        self,
        told: NDArray[np.intp],
        keys: NDArray[np.float64],
        values: NDArray[np.float64] | NDArray[np.bool_],
        at: NDArray[np.float64],
    ) -> _Said:
        entered = np.isfinite(values) if self._finite else np.ones(len(told), np.bool_)
        results = self._results(keys, values, entered, at)
        assert self._reach.column is not None
        full = self._reach.column[told]
        known = np.array([result is not None for result in results], np.bool_)
        if self._early is None:
            known &= full
        return _Said(
            _after(self.value, np.array(results, np.float64)),
            _after(self.value is not None, known),
            _after(self.bound, np.where(full, 0, self._early or 0)).astype(np.int8),
            np.maximum.accumulate(_after(self._newest, np.where(entered, keys, -np.inf))),
        )

    def _results(
        self,
        keys: NDArray[np.float64],
        values: NDArray[np.float64] | NDArray[np.bool_],
        entered: NDArray[np.bool_],
        at: NDArray[np.float64],
    ) -> list[float | None]:
        """What the window says after each value that was told."""
        window = self._window
        if isinstance(window, Rate):
            return [_timed(window, *told) for told in _rows(keys, values, entered, at)]
        push, slide = window.push, window.slide
        if entered.all():
            return [push(key, value) for key, value in _rows(keys, values)]
        return [push(key, value) if enters else slide(key) for key, value, enters in _rows(keys, values, entered)]


def _after(first: float | None, rest: NDArray[Any]) -> NDArray[Any]:
    """None becomes NaN."""
    return np.concatenate((np.array([first], rest.dtype), rest))


def _timed(window: Rate, key: float, value: float, enters: bool, at: float) -> float | None:
    if not enters:
        return window.slide(key)
    window.at = at
    return window.push(key, value)


def _rows(*columns: NDArray[Any]) -> Iterator[Any]:
    return zip(*(column.tolist() for column in columns), strict=True)


class WindowedEach(Each):
    """The same for each layer, module or rank: ``make`` makes its window. Before a window has filled it has no value,
    unless ``early`` is 0.
    """

    __slots__ = ("_early", "_finite", "_make", "_newest", "_of", "_reach", "_windows")

    def __init__(self, of: Each, make: Callable[[], Window], reach: Reach, *, early: int | None, finite: bool) -> None:
        super().__init__()
        self._of = of
        self._make = make
        self._reach = reach
        self._early = early
        self._finite = finite
        self._windows: dict[Key, Window] = {}
        self._newest = -math.inf

    def tick(self, now: Now) -> None:
        if not now.is_update:
            return
        key = self._reach.ruler.key(now)
        if self._of.fresh:
            results = ((name, self._told(name, key, value, now.at)) for name, value in self._of.value.items())
            known = self._reach.full or self._early == 0
            self.value = {name: value for name, value in results if value is not None and known}
            self.fresh = self.moved = True
            self._newest = key
            return
        self.fresh = self.moved = False
        if self.value and self._newest <= key - self._reach.ruler.width:
            self.value, self.moved = {}, True

    def _told(self, name: Key, key: float, told: float, at: float) -> float | None:
        window = self._windows.get(name)
        if window is None:
            window = self._windows[name] = self._make()
        if self._finite and told - told != 0.0:
            return window.slide(key)
        if isinstance(window, Rate):
            window.at = at
        return window.push(key, told)
