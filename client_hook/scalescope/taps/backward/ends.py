"""The two ends of an optimizer's backward passes, counted without a line of Python.

What torch calls at each gradient is C alone, and keeps nothing: a cache without room counts its misses, and
what it passes them on to is a queue without room. So an ordinary update pays for one hook in Python, on the
parameter that gets its gradient first, and still no pass goes unnoticed that leaves this parameter out.
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
    """The first and the last parameter to get a gradient, which are not the same."""

    def __init__(self, first: torch.Tensor, last: torch.Tensor) -> None:
        self._first = _Counter(first)
        self._last = _Counter(last)

    def agree(self) -> bool:
        """Whether both got as many gradients so far. In the middle of a backward they do not."""
        return self._first.infos().misses == self._last.infos().misses

    def overheard(self) -> bool:
        """Whether the last one got a gradient in a backward that had none for the first."""
        return self._last.infos().misses > self._first.infos().misses

    def remove(self) -> None:
        self._first.remove()
        self._last.remove()
