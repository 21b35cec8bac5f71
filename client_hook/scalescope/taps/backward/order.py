"""The order in which gradients are produced, put together from the windows in which all parameters were heard.

A window is cut into passes, since what a second pass brings anew (another head, say) comes before what both
have in common, however late it was heard. Where two passes contradict each other, no order is claimed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

# What a window's later passes bring anew stays without a place: bounds what a long window keeps.
_MAX_PASSES = 16


class BackwardOrder:
    """Learns from what is heard. Indexes without a place are in ``unplaced``."""

    def __init__(self) -> None:
        self.unplaced: set[int] = set()
        self.contradicted = False
        self._placed: list[int] = []
        self._seen: set[int] = set()
        # (index, the backward's number), pass by pass.
        self._passes: list[list[tuple[int, int]]] = [[]]
        self._current: set[int] = set()

    def __contains__(self, index: int) -> bool:
        """Whether it was ever heard."""
        return index in self._seen

    @property
    def indexes(self) -> list[int]:
        """All that have a place, as their gradients are produced; none where passes contradict each other."""
        return [] if self.contradicted else list(self._placed)

    def hear(self, index: int, task: int, *, whole: bool) -> None:
        """A gradient came in the backward numbered ``task``; ``whole``: all parameters are listened to."""
        if index not in self._seen:
            self._seen.add(index)
            self.unplaced.add(index)
        if not whole or len(self._passes) > _MAX_PASSES:
            return
        if index in self._current:
            self._begin_pass(task)
        self._passes[-1].append((index, task))
        self._current.add(index)

    def close_window(self) -> bool:
        """Give a place to what this window brought; whether that changed the order."""
        before = self.indexes
        passes, self._passes, self._current = self._passes, [[]], set()
        for heard in passes:
            joined = merged(self._placed, [index for index, _ in heard])
            if joined is None:
                self.contradicted = True
            else:
                self._placed = joined
        if self.unplaced:
            self.unplaced.difference_update(self._placed)
        return self.indexes != before

    def _begin_pass(self, task: int) -> None:
        """What this backward brought before the first repetition was already part of the new pass."""
        last = self._passes[-1]
        self._passes[-1] = [pair for pair in last if pair[1] != task]
        self._passes.append([pair for pair in last if pair[1] == task])
        self._current = {index for index, _ in self._passes[-1]}


def merged(order: Sequence[int], heard: Sequence[int]) -> list[int] | None:
    """``order`` with what ``heard`` brings anew, each before what followed it; None if the two contradict.

    What nothing known follows comes after what preceded it.
    """
    place = {index: position for position, index in enumerate(order)}
    known = [place[index] for index in heard if index in place]
    if known != sorted(known):
        return None
    before: dict[int, list[int]] = {}
    anchor = known[-1] + 1 if known else len(order)
    for index in reversed(heard):
        if index in place:
            anchor = place[index]
        else:
            before.setdefault(anchor, []).insert(0, index)
    joined = []
    for position, index in enumerate(order):
        joined += [*before.get(position, ()), index]
    return joined + before.get(len(order), [])


def is_eager(modules: Sequence[int]) -> bool:
    """Whether gradients that came from these modules, numbered in forward order, can be those of an eager backward.

    That one finishes with a module before it goes on, and goes down through the model more than up. A compiled
    graph hands over all its gradients at once in an order of its own, sharding those of a group of layers.
    """
    visits = [module for place, module in enumerate(modules) if place == 0 or module != modules[place - 1]]
    ups = sum(one < other for one, other in itertools.pairwise(visits))
    return len(visits) == len(set(visits)) and 2 * ups <= len(visits)
