"""The two ends of an optimizer's backward passes, counted without a line of Python.

What torch calls at each gradient is C alone, and keeps nothing: it takes the next of a long row of nothings, and how
many are left of the row tells the count. So no pass goes unnoticed, whichever way it takes through a model, and an
ordinary update pays for no Python while a backward runs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import torch

# What no training counts down.
_ROW = 2**62


class Counter:
    """Counts the gradients that ``tensor`` gets: ``left()`` is one less after each."""

    def __init__(self, tensor: torch.Tensor) -> None:
        row = itertools.repeat(None, _ROW)
        # Called with the tensor, which would be the answer once the row is through.
        self._handle = tensor.register_post_accumulate_grad_hook(functools.partial(next, row))
        self.left: Callable[[], int] = row.__length_hint__

    def remove(self) -> None:
        self._handle.remove()


class Ends:
    """The first and the last parameter of an optimizer to get a gradient in a backward; they may be the same."""

    def __init__(self, first: torch.Tensor, last: torch.Tensor) -> None:
        self.parameter = first
        self.first = Counter(first)
        self.last = self.first if last is first else Counter(last)

    def agree(self) -> bool:
        """Whether both got as many gradients so far. In the middle of a backward they do not."""
        return self.first.left() == self.last.left()

    def overheard(self) -> bool:
        """Whether the last one got a gradient in a backward that had none for the first."""
        return self.last.left() < self.first.left()

    def remove(self) -> None:
        self.first.remove()
        self.last.remove()
