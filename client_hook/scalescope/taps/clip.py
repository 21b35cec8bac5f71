"""Clipping, heard before it changes a gradient.

Everything in ``torch.nn.utils.clip_grad`` (by norm and by value, imported by whatever name) first groups the
gradients with one private function of that module. It is replaced while a training is watched; a torch that
has none is not heard, and there gradients are measured where the optimizer steps, after clipping.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.nn.utils import clip_grad

from scalescope.taps.edge import Edge

_NAME = "_group_tensors_by_device_and_dtype"

Grouping = Callable[..., Any]


class Ear(Protocol):
    """Who is told: the loop of a watched training."""

    edge: Edge

    def clipping(self, gradients: Sequence[torch.Tensor]) -> None: ...


class _Replacement:
    """Torch's function and the one in its place, while somebody listens."""

    def __init__(self) -> None:
        # Weak, since a training that is forgotten without an end must not be kept by a table of ours.
        self.ears: weakref.WeakSet[Ear] = weakref.WeakSet()
        self._theirs: Grouping | None = None
        self._ours: Grouping | None = None

    def install(self) -> None:
        current = getattr(clip_grad, _NAME, None)
        if callable(current) and (self._ours is None or current is not self._ours):
            self._theirs, self._ours = current, _heard(current)
            setattr(clip_grad, _NAME, self._ours)

    def restore(self) -> None:
        """A replacement that somebody put over ours stays: ours then only passes on."""
        if self._ours is not None and getattr(clip_grad, _NAME, None) is self._ours:
            setattr(clip_grad, _NAME, self._theirs)
        self._theirs = self._ours = None


_REPLACEMENT = _Replacement()


def listen(ear: Ear) -> None:
    """Tell ``ear`` of every clipping in this process until :func:`ignore`, or until it is gone."""
    _REPLACEMENT.ears.add(ear)
    _REPLACEMENT.install()


def ignore(ear: Ear) -> None:
    """Tell it no more; with the last one torch's own function is back."""
    _REPLACEMENT.ears.discard(ear)
    if not _REPLACEMENT.ears:
        _REPLACEMENT.restore()


def _heard(original: Grouping) -> Grouping:
    def grouping(tensors: Sequence[Sequence[torch.Tensor]], *args: object, **kwargs: object) -> object:
        # A graph that is being traced has no gradients yet.
        if not torch.compiler.is_compiling() and tensors and tensors[0]:
            for ear in list(_REPLACEMENT.ears):
                ear.edge.call(ear.clipping, tensors[0])
        return original(tensors, *args, **kwargs)

    return grouping
