"""How many backward passes are in a gradient: told by the gradient itself, at each time it is added to.

Adding in place leaves a tensor the same and counts its version up by one. A gradient that came anew, because
``zero_grad`` threw the one before away, is another tensor, or begins at an earlier version. Anything else was
changed in between by others, and the count is not known.
"""

from __future__ import annotations

from collections.abc import Iterable

# A gradient as the last backward pass left it: its passes (None where not known), its identity and its version.
# A plain tuple, since one is made in every backward.
Heard = tuple[int | None, int, int]


class Passes:
    """Counts for each parameter that is listened to, from one step of its optimizer to the next."""

    def __init__(self) -> None:
        # Index -> what was heard of it, in the order in which they were heard first.
        self.heard: dict[int, Heard] = {}

    def hear(self, index: int, identity: int, version: int, *, graph: bool, added: int = 1) -> int | None:
        """Backward passes have just added to a gradient (its local shard). The answer is its count.

        Args:
            identity, version: of the gradient as it stands.
            graph: whether they may have made a graph (``create_graph``): there a sum is another tensor as well.
            added: how many they were.
        """
        last = self.heard.get(index)
        passes = _first(added) if last is None else _count(last, identity, version, graph=graph, added=added)
        self.heard[index] = (passes, identity, version)
        return passes

    def count(self, indexes: Iterable[int]) -> int | None:
        """The count that all that were heard of ``indexes`` agree on; else None.

        They differ where a block runs several times in one pass (reentrant checkpointing), or where passes take
        different ways through a model: which of them is the number of passes, they do not tell.
        """
        counts = {self.heard[index][0] for index in indexes if index in self.heard}
        return counts.pop() if len(counts) == 1 else None


def _first(added: int) -> int | None:
    # Of several it is not known whether all are still in it.
    return 1 if added == 1 else None


def _count(last: Heard, identity: int, version: int, *, graph: bool, added: int) -> int | None:
    passes, last_identity, last_version = last
    if identity == last_identity and version == last_version + added:
        return None if passes is None else passes + added
    anew = identity != last_identity or version <= last_version
    return _first(added) if anew and not graph else None
