"""The leaves that have a value for each layer, module or rank, and whether ranks agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from scalescope_server.rules.keys import Key, merged
from scalescope_server.rules.signals.each import Each
from scalescope_server.rules.signals.rows import Rows, any_of, lapsing, row_of
from scalescope_server.rules.signals.signal import HOLD_UPDATES, Column, Evidence, Now, Signal, Span, unbounded
from scalescope_server.rules.stretch import Told


class ToldEach(Each):
    """The latest that was told, until it has been held for so many updates."""

    __slots__ = ("_told_at",)

    def __init__(self) -> None:
        super().__init__()
        self._told_at = 0

    def tick(self, now: Now) -> None:
        if not now.is_update:
            return
        told = self._told(now)
        if told is not None:
            keys = merged(self.rows.keys, tuple(told))
            self._move(row_of(keys, dict(told)), np.array([now.place]))
        elif now.place - self._told_at >= HOLD_UPDATES and self.rows.known[-1].any():
            self._move(self._nothing(), np.array([now.place]))
        else:
            self.rest()

    def over(self, span: Span) -> None:
        told = self._over(span)
        self._move(self._nothing() if told is None else told, span.place)

    def _move(self, told: Rows, places: NDArray[np.int64]) -> None:
        """``told``: the rows at the updates that stand at ``places``, none of what was before."""
        told_at = np.concatenate(([self._told_at], places[told.at]))
        rows = self.rows.then(told)
        self.set(lapsing(rows, told_at.astype(np.float64), (places - HOLD_UPDATES).astype(np.float64)))
        self._told_at = int(told_at[-1])

    def _nothing(self) -> Rows:
        """No row."""
        rows = self.rows
        return Rows(rows.keys, rows.at[:0], rows.values[:0], rows.known[:0], rows.fresh[:0])

    def _told(self, now: Now) -> Mapping[Key, float] | None:
        """What is told at an update; None where nothing is."""
        raise NotImplementedError

    def _over(self, span: Span) -> Rows | None:
        """The same of all updates of ``span``; None where nothing is at any."""
        raise NotImplementedError


class MeasuredSignal(ToldEach):
    """The values of the latest sample that has the measure, of the layers or modules whose name matches."""

    __slots__ = ("_measure", "_names", "_without")

    def __init__(self, measure: str, names: str, without: str) -> None:
        super().__init__()
        self._measure = measure
        self._names, self._without = names, without

    def _told(self, now: Now) -> Mapping[Key, float] | None:
        told = now.layers.get(self._measure)
        if told is None:
            return None
        return {name: told[name] for name in _taken(tuple(told), self._names, self._without)[0]}

    def _over(self, span: Span) -> Rows | None:
        sampled = span.stretch.layers.get(self._measure)
        if sampled is None:
            return None
        names, places = _taken(sampled.names, self._names, self._without)
        fresh = np.ones(len(sampled.at), np.bool_)
        rows = Rows(names, sampled.at, sampled.values[:, places], sampled.known[:, places], fresh)
        return rows.under(merged(self.rows.keys, names))


class RanksSignal(ToldEach):
    """What ranks told of a series at the latest update at which any did."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def _told(self, now: Now) -> Mapping[Key, float] | None:
        by_rank = now.ranks.get(self._name, {})
        return {rank: float(value) for rank, value in by_rank.items() if value is not None} or None

    def _over(self, span: Span) -> Rows | None:
        by_rank: Mapping[int, Told] = span.stretch.ranks.get(self._name, {})
        if not by_rank:
            return None
        known = np.stack([told.told for told in by_rank.values()], axis=1)
        values = np.stack([told.values for told in by_rank.values()], axis=1)
        at = np.flatnonzero(any_of(known))
        rows = Rows(tuple(by_rank), at, values[at], known[at], np.ones(len(at), np.bool_))
        return rows.under(merged(self.rows.keys, rows.keys))


class DisagreementSignal(Signal):
    """Whether ranks told different values of the latest update that two or more of them told."""

    __slots__ = ("_of", "_ranks", "_said", "_told_at")

    def __init__(self, of: Each) -> None:
        super().__init__()
        self._of = of
        self._told_at = 0
        # Which rank was apart, what was before the stretch first; and which of them is said at each of its updates.
        self._ranks: list[Key | None] = [None]
        self._said = np.zeros(1, np.intp)

    def tick(self, now: Now) -> None:
        told = self._of.rows.last()
        self.fresh = self.moved = self._of.fresh and int(told.known.sum()) > 1
        if self.fresh:
            rank = _apart(told, 0)
            self._ranks, self.value, self._told_at = [rank], rank is not None, now.place
        elif self.value is not None and now.place - self._told_at >= HOLD_UPDATES:
            self.value, self.moved = None, True

    def stretch(self, span: Span) -> Column:
        rows = self._of.rows
        told = np.flatnonzero(rows.fresh & (rows.known.sum(axis=1) > 1))
        self._ranks = [self._ranks[-1], *(_apart(rows, row) for row in told.tolist())]
        fresh = np.zeros(len(span), np.bool_)
        fresh[rows.at[told]] = True
        self._said = np.cumsum(fresh)
        told_at = np.concatenate(([self._told_at], span.place[fresh]))
        self._told_at = int(told_at[-1])
        apart = np.array([rank is not None for rank in self._ranks])
        known = (self._said > 0) | (self.value is not None)
        known &= span.place - told_at[self._said] < HOLD_UPDATES
        return Column(apart[self._said], known, fresh, unbounded(len(span)))

    def settle(self) -> None:
        super().settle()
        self._ranks = self._ranks[-1:]

    def evidence(self, index: int | None) -> Evidence:
        rows = self._of.rows
        if index is None or self.column is None:
            rank, row = self._ranks[-1], -1
        else:
            rank, row = self._ranks[int(self._said[index])], int(rows.holding(np.array(index)))
        if rank is None:
            return None, None
        place = rows.keys.index(rank)
        return rows.values[row, place].item() if rows.known[row, place] else None, rank


def _apart(rows: Rows, row: int) -> Key | None:
    """The first rank whose value is not that of most; None where all are one. NaN is one with NaN."""
    known = rows.known[row]
    values = rows.values[row][known]
    if (values == values[0]).all():
        return None
    told = {
        rows.keys[place]: repr(value) for place, value in zip(known.nonzero()[0].tolist(), values.tolist(), strict=True)
    }
    ((most, count),) = Counter(told.values()).most_common(1)
    return None if count == len(told) else next(rank for rank, value in told.items() if value != most)


@lru_cache(maxsize=256)
def _taken(names: tuple[str, ...], wanted: str, without: str) -> tuple[tuple[str, ...], NDArray[np.intp]]:
    """Those of ``names`` that match ``wanted`` and not ``without``, and their places."""
    places = [
        place
        for place, name in enumerate(names)
        if fnmatchcase(name, wanted) and not (without and fnmatchcase(name, without))
    ]
    return tuple(names[place] for place in places), np.array(places, np.intp)
