"""How many backward passes are in a gradient: told by the gradient itself, at each time it is added to.

Adding in place leaves a tensor the same and counts its version up by one. A gradient that came anew, because
``zero_grad`` threw the one before away, is another tensor, or begins at an earlier version. Anything else was
changed in between by others, and the count is not known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch


class Heard(NamedTuple):
    """A gradient as it was left by the last backward pass; ``passes`` is None where not known."""

    passes: int | None
    identity: int
    version: int


class Passes:
    """Counts for each parameter that is listened to, from one step of its optimizer to the next."""

    def __init__(self) -> None:
        self._heard: dict[int, Heard] = {}

    def hear(self, index: int, gradient: torch.Tensor | None) -> int | None:
        """A backward pass has just added to ``gradient`` (its local shard). The answer is its count."""
        if gradient is None:
            identity, version = 0, -1
        else:
            # The counter that autograd itself goes by when it checks what it saved.
            identity, version = id(gradient), gradient._version  # noqa: SLF001
        last = self._heard.get(index)
        passes = 1 if last is None else _count(last, identity, version)
        self._heard[index] = Heard(passes, identity, version)
        return passes

    def heard(self) -> list[int]:
        """What was heard, in the order in which it came first."""
        return list(self._heard)

    def __contains__(self, index: int) -> bool:
        return index in self._heard

    def count(self, indexes: Iterable[int]) -> int | None:
        """The count that all that were heard of ``indexes`` agree on; else None.

        They differ where a block runs several times in one pass (reentrant checkpointing), or where passes take
        different ways through a model: which of them is the number of passes, they do not tell.
        """
        counts = {self._heard[index].passes for index in indexes if index in self._heard}
        return counts.pop() if len(counts) == 1 else None

    def forget(self, index: int) -> None:
        self._heard.pop(index, None)


def _count(last: Heard, identity: int, version: int) -> int | None:
    if identity == last.identity and version == last.version + 1:
        return None if last.passes is None else last.passes + 1
    # With create_graph a sum is another tensor as well.
    anew = identity != last.identity or version <= last.version
    return 1 if anew and not torch.is_grad_enabled() else None
