"""What the wrappers of torch make of plain parameters: replicas (DistributedDataParallel), or slices of a flat one.

A parameter does not know its wrapper, which may be around the watched model as well as in it: see :func:`wrappers`.
Of ``FullyShardedDataParallel`` private attributes are read; where they are not there its parameters count as local.
"""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from scalescope.wire import Part

# The handle of a flat parameter: private, and so without a type.
Handle = Any


class _Flat(NamedTuple):
    """What is read of a flat parameter. ``originals``: where the author's own ones are kept, None where not."""

    originals: Sequence[torch.Tensor] | None
    shapes: Sequence[torch.Size]
    numels: Sequence[int]
    paddings: Sequence[bool]
    infos: Sequence[Any]
    sharded_size: torch.Size


_FLAT = attrgetter(
    "_params", "_shapes", "_numels_with_padding", "_is_padding_mask", "_shard_param_infos", "_sharded_size"
)


class Held(NamedTuple):
    """What this rank holds of a parameter, whose whole has this ``shape``. ``sliced``: out of a flat one."""

    shape: tuple[int, ...]
    part: Part
    sliced: bool = False


def held_by_wrappers(models: Sequence[nn.Module]) -> dict[int, Held]:
    """Of every parameter, by its ``id``, that a wrapper in this process manages among ranks."""
    found: dict[int, Held] = {}
    for wrapper in wrappers(models):
        found.update(_replicas(wrapper) if isinstance(wrapper, DistributedDataParallel) else _slices(wrapper))
    return found


def wrappers(models: Sequence[nn.Module]) -> list[nn.Module]:
    """Those in ``models``; and around them, where people often keep only the inner model at hand."""
    kinds: list[type[nn.Module]] = [DistributedDataParallel]
    # To import it takes half a second, and who has not done so has none.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kinds += [] if fsdp is None else [fsdp.FullyShardedDataParallel]
    seen = [*(part for model in models for part in model.modules()), *gc.get_objects()]
    # By the type alone: what else is there may answer anything when it is asked for its class. Types are few.
    wanted = {kind for kind in set(map(type, seen)) if issubclass(kind, tuple(kinds))}
    return list({id(thing): thing for thing in seen if type(thing) in wanted}.values()) if wanted else []


def _replicas(wrapper: DistributedDataParallel) -> Iterator[tuple[int, Held]]:
    leads = distributed.get_rank(wrapper.process_group) == 0
    ignored = wrapper.parameters_to_ignore
    for name, parameter in wrapper.module.named_parameters():
        if name not in ignored:
            yield id(parameter), _replica(parameter, leads=leads)


def _replica(parameter: torch.Tensor, *, leads: bool, sliced: bool = False) -> Held:
    part = Part("replicated", parameter.numel() if leads else 0, leads=leads)
    return Held(tuple(parameter.shape), part, sliced)


def _slices(wrapper: nn.Module) -> list[tuple[int, Held]]:
    """Of the flat parameter of one wrapper: every rank of its group has an equal run of it, the last ones padded."""
    handle = getattr(wrapper, "_handle", None)
    if handle is None:
        return []
    try:
        flat, between = _Flat(*_FLAT(handle.flat_param)), getattr(wrapper, "_inter_node_pg", None)
        first_replica = between is None or distributed.get_rank(between) == 0
        if not handle.uses_sharded_strategy:
            sliced, leads = flat.originals is not None, handle.rank == 0
            held = [_replica(each, leads=leads, sliced=sliced) for each in flat.originals or [handle.flat_param]]
        elif flat.originals is None:
            held = [_run(handle, flat, first_replica=first_replica)]
        else:
            held = list(_cut(handle, flat, first_replica=first_replica))
    except AttributeError:
        return []
    return [(id(each), one) for each, one in zip(flat.originals or [handle.flat_param], held, strict=True)]


def _run(handle: Handle, flat: _Flat, *, first_replica: bool) -> Held:
    """The flat parameter itself, with what pads it: fewer elements than there are ranks."""
    elements = flat.sharded_size.numel()
    part = Part("sharded", elements if first_replica else 0, leads=first_replica and handle.rank == 0)
    return Held((elements * handle.world_size,), part)


def _cut(handle: Handle, flat: _Flat, *, first_replica: bool) -> Iterator[Held]:
    """The author's own parameters, each a slice of the flat one, which may begin and end in the middle of a rank."""
    ends = itertools.accumulate(flat.numels)
    starts = [end - numel for end, numel, pads in zip(ends, flat.numels, flat.paddings, strict=True) if not pads]
    for shape, start, info in zip(flat.shapes, starts, flat.infos, strict=True):
        elements = (info.numel_in_shard or 0) if first_replica else 0
        # An empty slice has no gradient, so the first rank that has some of it leads.
        leads = first_replica and handle.rank == start // flat.sharded_size.numel()
        yield Held(tuple(shape), Part("sharded", elements, leads=leads), sliced=True)
