"""The key-value store through which the ranks of this process have met."""

from __future__ import annotations

from torch import distributed

from scalescope.agreement import Meeting, Store
from scalescope.taps.facts import is_among_ranks


def shared_store() -> Store:
    """A store that all ranks see, for one thread of ours. Only among ranks.

    Where torch can, it is a connection of its own: on the training's one we would wait for as long as the training
    waits for a key, and it for us.

    Raises:
        RuntimeError: if this torch, or this process group, has no such store.
    """
    find = getattr(distributed.distributed_c10d, "_get_default_store", None)
    store = None if find is None else find()
    if store is None:
        raise RuntimeError("this process group has no store that could be read")
    clone = getattr(store, "clone", None)
    own: Store = store if clone is None else clone()
    return own


MEETING = Meeting(is_among_ranks, shared_store)
