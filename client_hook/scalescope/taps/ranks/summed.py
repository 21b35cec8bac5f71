"""Parameters whose gradients come as sums over ranks, so that no gradient tells in which format it was computed.

``fully_shard`` adds up what the ranks have computed before anybody sees it. Its policy may say the format: read from
private attributes, not known where they are not there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn


def summed_over_ranks(models: Sequence[nn.Module]) -> dict[int, torch.dtype | None]:
    """Of each such parameter, by its ``id``: what its policy has it computed in, None where autocast decides."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    sharded = getattr(fsdp, "FSDPModule", None)
    if sharded is None:
        return {}
    found: dict[int, torch.dtype | None] = {}
    for model in models:
        for module in model.modules():
            if isinstance(module, sharded):
                found.update(_group(module))
    return found


def _group(module: Any) -> Iterator[tuple[int, torch.dtype | None]]:  # noqa: ANN401 - private
    try:
        # A module whose parameters are all those of modules in it has none of its own.
        group = module._get_fsdp_state()._fsdp_param_group  # noqa: SLF001 - see the module
        held = (
            []
            if group is None
            else [(id(each.sharded_param), group.mp_policy.param_dtype) for each in group.fsdp_params]
        )
    except AttributeError:
        return
    yield from held
