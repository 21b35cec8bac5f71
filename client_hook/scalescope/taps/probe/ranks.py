"""Probes among several ranks: each rank runs its own micro-batch by itself, and nothing is sent.

A probe that sent something would wait for ever where not all ranks run one, and nobody can know that without
sending. So a data-parallel wrapper steps aside, and what cannot do without the other ranks is refused: parameters
that are spread over them at once, any other collective at the moment at which it would begin.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from scalescope.taps.facts import is_among_ranks
from scalescope.taps.probe.precision import ProbeError

_SHARDED = frozenset({"FullyShardedDataParallel", "FSDPModule"})
_COLLECTIVES = frozenset({"c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd"})
_FORWARD = "forward"
# What a mode is handed for any operation, and what a module is called with.
Given = Any


def refuse_sharded(models: Sequence[nn.Module]) -> None:
    """Raises :class:`ProbeError` if parameters of ``models`` are spread over ranks."""
    sharded = any(base.__name__ in _SHARDED for m in models for part in m.modules() for base in type(part).__mro__)
    if sharded or any(hasattr(tensor, "to_local") for model in models for tensor in model.parameters()):
        raise ProbeError("the parameters are spread over ranks, and a probe sends nothing: probe a run on one rank")


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Data-parallel modules do no more here than to call what they wrap."""
    if not is_among_ranks():
        yield
        return
    forward = DistributedDataParallel.forward
    # Its own one also settles once, with the other ranks, in which buckets it sends.
    setattr(DistributedDataParallel, _FORWARD, _inside)
    try:
        yield
    finally:
        setattr(DistributedDataParallel, _FORWARD, forward)


def alone() -> contextlib.AbstractContextManager[object]:
    """A collective raises :class:`ProbeError` here, before it begins."""
    return _Alone() if is_among_ranks() else contextlib.nullcontext()


def _inside(wrapper: Given, *inputs: Given, **named: Given) -> Given:
    return wrapper.module(*inputs, **named)


class _Alone(TorchDispatchMode):
    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)

    def __torch_dispatch__(
        self, func: Given, types: Given, args: Sequence[Given] = (), kwargs: Mapping[str, Given] | None = None
    ) -> Given:
        if func.namespace in _COLLECTIVES:
            raise ProbeError(
                f"the loss function speaks to other ranks ({func}), and a probe that one rank runs alone would wait "
                "for them for ever: leave sums over ranks out of it, and batch norm over ranks in eval mode"
            )
        return func(*args, **(kwargs or {}))
