"""Probes among several ranks: each rank runs its own micro-batch by itself, and nothing is sent.

A probe that sent something would wait for ever where not all ranks run one, and nobody can know that without
sending. So what cannot do without is refused: parameters spread over ranks here, any other collective at the
moment at which it would begin (:class:`~scalescope.taps.probe_reference.Checking`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from scalescope.taps.probe_precision import ProbeError

_SHARDED = frozenset({"FullyShardedDataParallel", "FSDPModule"})
# What says whether a data-parallel wrapper sums gradients and sends buffers.
_SYNCS = ("require_backward_grad_sync", "require_forward_param_sync")


def refuse_sharded(models: Sequence[nn.Module]) -> None:
    """Raises :class:`ProbeError` if parameters of ``models`` are spread over ranks."""
    sharded = any(base.__name__ in _SHARDED for m in models for part in m.modules() for base in type(part).__mro__)
    if sharded or any(hasattr(tensor, "to_local") for model in models for tensor in model.parameters()):
        raise ProbeError("the parameters are spread over ranks, and a probe sends nothing: probe a run on one rank")


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Data-parallel wrappers, watched or not, neither sum gradients nor send buffers when they are called here."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        yield
        return
    kept: list[tuple[nn.Module, dict[str, bool]]] = []

    def quiet(module: nn.Module, _: object) -> None:
        if isinstance(module, nn.parallel.DistributedDataParallel):
            kept.append((module, {name: getattr(module, name) for name in _SYNCS}))
            vars(module).update(dict.fromkeys(_SYNCS, False))

    handle = register_module_forward_pre_hook(quiet)
    try:
        yield
    finally:
        handle.remove()
        for module, syncs in reversed(kept):
            vars(module).update(syncs)
