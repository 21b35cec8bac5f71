"""The two ends of an optimizer's backward passes, counted without a line of Python.

What torch calls at each gradient is C alone, and keeps nothing: a cache without room counts its misses, and
what it passes them on to is a queue without room. So no pass goes unnoticed, whichever way it takes through a
model, and an ordinary update pays for no Python while a backward runs.
"""

from __future__ import annotations

import functools
from collections import deque

import torch


class _Counter:
    """Counts the gradients that ``tensor`` gets."""

    def __init__(self, tensor: torch.Tensor) -> None:
        count = functools.lru_cache(maxsize=0)(deque[torch.Tensor](maxlen=0).append)
        self._handle = tensor.register_post_accumulate_grad_hook(count)
        # Its misses are the count.
        self.infos = count.cache_info

    def remove(self) -> None:
        self._handle.remove()


class Ends:
    """The first and the last parameter of an optimizer to get a gradient in a backward; they may be the same."""

    def __init__(self, first: torch.Tensor, last: torch.Tensor) -> None:
        self.parameter = first
        self._first = _Counter(first)
        self._last = self._first if last is first else _Counter(last)

    def count(self) -> int | None:
        """How many gradients both got so far. None where they differ: in the middle of a backward they do."""
        first = self._first.infos().misses
        return first if self._last is self._first or self._last.infos().misses == first else None

    def first(self) -> int:
        """How many the first one got."""
        return self._first.infos().misses

    def agree(self) -> bool:
        """Whether both got as many gradients so far."""
        return self.count() is not None

    def overheard(self) -> bool:
        """Whether the last one got a gradient in a backward that had none for the first."""
        return self._last.infos().misses > self._first.infos().misses

    def total(self) -> int:
        """How many gradients they got, both together: it grows as soon as one of them does."""
        return self._first.infos().misses + self._last.infos().misses

    def remove(self) -> None:
        self._first.remove()
        self._last.remove()
