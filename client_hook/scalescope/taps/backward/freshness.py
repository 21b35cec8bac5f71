"""Whether a window began with gradients at zero: told by the gradients, whoever sets them to zero and how.

Compared with the gradient as the window before left it, the first one of a window is another tensor, or begins at
an earlier version, where it was thrown away in between. It is the same one, a version later, where a backward pass
has just added to what was left. Two versions later something changed it in between: zeroing it in place, perhaps.
A loop in which that is seen has its gradients looked at before the next backward, since afterwards nothing tells.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

# Identity and version of a gradient; None where there is none.
Stamp = tuple[int, int] | None


class Freshness:
    """Of each parameter that is listened to, from one step of its optimizer to the next."""

    def __init__(self) -> None:
        self._left: dict[int, Stamp] = {}
        # Index -> whether its window began at zero; None where that is not known.
        self.begun: dict[int, bool | None] = {}
        # What was changed between two windows; and of these what was seen to be zero before this one.
        self.suspects: set[int] = set()
        self._zeroed: set[int] = set()

    def leave(self, index: int, stamp: Stamp) -> None:
        """A window is over, and this is of the gradient that it leaves behind."""
        self.begun.pop(index, None)
        self._zeroed.discard(index)
        self._left[index] = stamp

    def hear(self, index: int, passes: int | None, identity: int, version: int, *, graph: bool, added: int = 1) -> None:
        """Backward passes have just added to a gradient, which holds so many of them now: see :meth:`Passes.hear`."""
        if index not in self.begun:
            self.begun[index] = self._begins_at_zero(index, identity, version, graph=graph, added=added)
        elif passes == 1:
            self.begun[index] = True

    def seen(self, indexes: Iterable[int]) -> bool | None:
        """Whether the window of these began at zero; None where that is not known of all."""
        found = {self.begun[index] for index in indexes if index in self.begun}
        return False if False in found else found.pop() if len(found) == 1 else None

    def untouched(self, index: int, gradient: torch.Tensor | None) -> bool:
        """Whether ``gradient`` is there, as the last window left it."""
        return gradient is not None and self._left.get(index) == stamp_of(gradient)

    def look(self, index: int, gradient: torch.Tensor | None) -> None:
        """Before a window's first backward. On a device the host would have to wait for what it sees."""
        left = self._left.get(index)
        if gradient is None or not gradient.is_cpu or left is None or stamp_of(gradient) != (left[0], left[1] + 1):
            return
        if not gradient.count_nonzero():
            self._zeroed.add(index)

    def _begins_at_zero(self, index: int, identity: int, version: int, *, graph: bool, added: int) -> bool | None:
        # Every one that is listened to was left at least when that began.
        left = self._left[index]
        if left is None:
            return True
        # With create_graph a sum is another tensor as well.
        if graph:
            return None
        if identity != left[0] or version <= left[1]:
            return True
        if version == left[1] + added:
            return False
        self.suspects.add(index)
        return True if index in self._zeroed else None


def stamp_of(gradient: torch.Tensor | None) -> Stamp:
    """What tells ``gradient`` (its local shard) from what it was."""
    # The counter that autograd itself goes by when it checks what it saved.
    return None if gradient is None else (id(gradient), gradient._version)  # noqa: SLF001
