"""One value for the run out of those of all layers, modules or ranks, and whose it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

from scalescope_server.rules.expression import AcrossName
from scalescope_server.rules.signals.signal import Each, Evidence, Key, Now, Signal

Pick = Callable[[Mapping[Key, float]], tuple[float, Key | None]]


def _largest(values: Mapping[Key, float]) -> tuple[float, Key | None]:
    key = max(values, key=values.__getitem__)
    return values[key], key


def _smallest(values: Mapping[Key, float]) -> tuple[float, Key | None]:
    key = min(values, key=values.__getitem__)
    return values[key], key


PICKS: dict[AcrossName, Pick] = {
    "max": _largest,
    "min": _smallest,
    "sum": lambda values: (sum(values.values()), None),
    "mean": lambda values: (sum(values.values()) / len(values), None),
    "median": lambda values: (median(values.values()), None),
}


class AcrossSignal(Signal):
    """The largest of all, their mean and the like, of those that are numbers; not known where there is none."""

    __slots__ = ("_culprit", "_of", "_pick")
    by_columns = False

    def __init__(self, function: AcrossName, of: Each) -> None:
        super().__init__()
        self._pick = PICKS[function]
        self._of = of
        self._culprit: Key | None = None

    def tick(self, now: Now) -> None:
        self.fresh, self.moved = self._of.fresh, self._of.moved
        if not self.moved:
            return
        values = {key: value for key, value in self._of.value.items() if value == value}
        self.value, self._culprit = self._pick(values) if values else (None, None)

    def evidence(self, index: int | None) -> Evidence:
        return self.value, self._culprit


class MatchingSignal(Signal):
    """For how many it holds, and the first of them; not known where it is not known for any."""

    __slots__ = ("_culprit", "_of")
    by_columns = False

    def __init__(self, of: Each) -> None:
        super().__init__()
        self._of = of
        self._culprit: Key | None = None

    def tick(self, now: Now) -> None:
        self.fresh, self.moved = self._of.fresh, self._of.moved
        if self.moved:
            held = [key for key, value in self._of.value.items() if value]
            self.value = float(len(held)) if self._of.value else None
            self._culprit = held[0] if held else None

    def evidence(self, index: int | None) -> Evidence:
        return self.value, self._culprit
