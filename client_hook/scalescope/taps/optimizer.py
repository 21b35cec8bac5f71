"""The optimizers, heard through their step hooks, where no enabled scaler says when an update is over.

With one optimizer an update is one step. With several an update is a round: it closes when all of them have
stepped, or when one of them is about to step again (a discriminator that trains more often than its
generator makes rounds of its own).
"""

from __future__ import annotations

import torch
from torch.utils.hooks import RemovableHandle

from scalescope.taps.loop import Loop


class OptimizerTap:
    """One scope's ears on its optimizers."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._stepped: set[int] = set()
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        for optimizer in self._loop.optimizers:
            self._handles.append(optimizer.register_step_pre_hook(_Before(self)))
            self._handles.append(optimizer.register_step_post_hook(_After(self)))

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        if id(optimizer) in self._stepped:
            self._close()
        self._loop.hear_backward()
        if self._loop.periodic:
            self._loop.measure(optimizer)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        self._stepped.add(id(optimizer))
        if len(self._stepped) == len(self._loop.optimizers):
            self._close()

    def remove(self) -> None:
        """Close a round that is still open, and take the hooks off."""
        if self._stepped:
            self._close()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def call(self, moment: str, optimizer: torch.optim.Optimizer) -> None:
        self._loop.edge.call(getattr(self, moment), optimizer)

    def _close(self) -> None:
        self._stepped.clear()
        self._loop.close()


class _Before:
    """Hangs on an optimizer's step; torch passes the step's own arguments too."""

    __slots__ = ("_tap",)

    def __init__(self, tap: OptimizerTap) -> None:
        self._tap = tap

    def __call__(self, optimizer: torch.optim.Optimizer, *_step: object) -> None:
        self._tap.call("stepping", optimizer)


class _After:
    __slots__ = ("_tap",)

    def __init__(self, tap: OptimizerTap) -> None:
        self._tap = tap

    def __call__(self, optimizer: torch.optim.Optimizer, *_step: object) -> None:
        self._tap.call("stepped", optimizer)
