"""What a signal of each layer, module or rank was over a span: a row wherever it was told or moved, held in between."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalescope_server.rules.keys import Key, Keys, same


class Rows(NamedTuple):
    """Of n layers, modules or ranks, ``keys``: k rows, and before them the one that held as the span began.

    ``at``: intp[k + 1], rising; the index of the update from which each holds, -1 of the first. ``values``:
    float64[k + 1, n], truths 0 and 1, free where they are not ``known``: bool[k + 1, n]. ``fresh``: bool[k + 1],
    whether it was told there; else it has only moved.
    """

    keys: Keys
    at: NDArray[np.intp]
    values: NDArray[np.float64]
    known: NDArray[np.bool_]
    fresh: NDArray[np.bool_]

    def holding(self, updates: NDArray[np.intp]) -> NDArray[np.intp]:
        """Which rows hold at the indices ``updates``: intp of their shape."""
        return self.at.searchsorted(updates, side="right") - 1

    def any(self) -> NDArray[np.bool_]:
        """Of which rows anything is known: bool[k + 1]."""
        return any_of(self.known)

    def last(self) -> Rows:
        """What holds as the next span begins."""
        if len(self.at) == 1:
            return self
        # Copies, so that the rest is forgotten.
        return Rows(self.keys, _BEFORE, self.values[-1:].copy(), self.known[-1:].copy(), _NOT_TOLD)

    def under(self, keys: Keys) -> Rows:
        """The same with a column for each of ``keys``."""
        if same(keys, self.keys):
            return self
        places, rows = _places(self.keys, keys), len(self.at)
        # Place -1 is one column more, of which nothing is known.
        values = np.concatenate((self.values, np.zeros((rows, 1))), axis=1)[:, places]
        known = np.concatenate((self.known, np.zeros((rows, 1), np.bool_)), axis=1)[:, places]
        return Rows(keys, self.at, values, known, self.fresh)

    def then(self, after: Rows) -> Rows:
        """``after``, in which no row is of before, and before it what is last here."""
        last = self.last().under(after.keys)
        return Rows(after.keys, *(np.concatenate(parts) for parts in zip(last[1:], after[1:], strict=True)))


_BEFORE = np.array([-1], np.intp)
_NOT_TOLD = np.zeros(1, np.bool_)
NOTHING = Rows((), _BEFORE, np.zeros((1, 0)), np.zeros((1, 0), np.bool_), _NOT_TOLD)


def lapsing(rows: Rows, newest: NDArray[np.float64], oldest: NDArray[np.float64]) -> Rows:
    """``rows``, and others of which nothing is known where one is held for too long.

    ``newest``: float64[k + 1], the key at which what each row says was told. ``oldest``: float64 by update, never
    falling: what was told at that key or before does not hold any more.
    """
    gone = oldest.searchsorted(newest, side="left")
    until = np.append(rows.at[1:], len(oldest))
    lapsed = ((gone < until) & rows.any()).nonzero()[0]
    if not len(lapsed):
        return rows
    at = np.concatenate((rows.at, gone[lapsed]))
    order = at.argsort(kind="stable")
    unknown = np.zeros((len(lapsed), len(rows.keys)))
    return Rows(
        rows.keys,
        at[order],
        np.concatenate((rows.values, unknown))[order],
        np.concatenate((rows.known, unknown.astype(np.bool_)))[order],
        np.concatenate((rows.fresh, np.zeros(len(lapsed), np.bool_)))[order],
    )


def any_of(truths: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """In which rows any is true: bool[k] of bool[k, n]."""
    found: NDArray[np.bool_] = np.logical_or.reduce(truths, axis=1)
    return found


@lru_cache(maxsize=256)
def _places(keys: Keys, wanted: Keys) -> NDArray[np.intp]:
    """Where each of ``wanted`` stands in ``keys``, -1 where it does not."""
    places = {key: place for place, key in enumerate(keys)}
    return np.array([places.get(key, -1) for key in wanted], np.intp)


def row_of(keys: Keys, told: dict[Key, Any]) -> Rows:
    """One that is told, at the first update."""
    known = np.array([[key in told for key in keys]], np.bool_)
    values = np.array([[told.get(key, 0.0) for key in keys]], np.float64)
    return Rows(keys, np.zeros(1, np.intp), values, known, np.ones(1, np.bool_))
