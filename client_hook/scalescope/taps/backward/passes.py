"""How many backward passes are in a gradient: told by the gradient itself, at each time it is added to.

Adding in place leaves a tensor the same and counts its version up by one. A gradient that came anew, because
``zero_grad`` threw the one before away, is another tensor, or begins at an earlier version. Anything else was
changed in between by others, and the count is not known.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

# A gradient as the last backward pass left it: its passes (None where not known), its identity and its version.
# A plain tuple, since one is made in every backward.
Heard = tuple[int | None, int, int]


class Passes:
    """Counts for each parameter that is listened to, from one step of its optimizer to the next."""

    def __init__(self) -> None:
        # Index -> what was heard of it, in the order in which they were heard first.
        self.heard: dict[int, Heard] = {}

    def hear(self, index: int, gradient: torch.Tensor | None) -> int | None:
        """A backward pass has just added to ``gradient`` (its local shard). The answer is its count."""
        if gradient is None:
            identity, version = 0, -1
        else:
            # The counter that autograd itself goes by when it checks what it saved.
            identity, version = id(gradient), gradient._version  # noqa: SLF001
        last = self.heard.get(index)
        passes = 1 if last is None else _count(last, identity, version)
        self.heard[index] = (passes, identity, version)
        return passes

    def count(self, indexes: Iterable[int]) -> int | None:
        """The count that all that were heard of ``indexes`` agree on; else None.

        They differ where a block runs several times in one pass (reentrant checkpointing), or where passes take
        different ways through a model: which of them is the number of passes, they do not tell.
        """
        counts = {self.heard[index][0] for index in indexes if index in self.heard}
        return counts.pop() if len(counts) == 1 else None


def _count(last: Heard, identity: int, version: int) -> int | None:
    passes, last_identity, last_version = last
    if identity == last_identity and version == last_version + 1:
        return None if passes is None else passes + 1
    # With create_graph a sum is another tensor as well.
    anew = identity != last_identity or version <= last_version
    return 1 if anew and not torch.is_grad_enabled() else None
