"""Trainings among ranks, and what one rank tells of them; with the address of a server two of them are reported there.

Everything is a small multiple of a power of two, so that sums are exact in whatever order they are taken: what all
ranks tell together must be what one rank alone tells, to the last count.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import scalescope
import torch
from scalescope import wire
from scalescope.packing import unpack
from scalescope.taps.modules.histograms import KINDS
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from tests.small_training import columns, events, layouts, watching

BATCH = 8
UPDATES = 4
# In this update the last sample, which the last rank has, overflows at this row of the first layer, which the first
# rank has where the layer is spread over them.
BAD, ROW = 2, 1
FULL = ShardingStrategy.FULL_SHARD

Wrap = Callable[[nn.Module], nn.Module]
Told = dict[str, Any]


class Pair(nn.Module):
    """Two layers, of 5 x 7 and 7 x 1 weights: nothing that divides evenly, and less rows than ranks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(5, 7), nn.Linear(7, 1)
        self.factor = torch.ones(1, 1)
        for parameter in self.parameters():
            with torch.no_grad():
                parameter.copy_(torch.randint(-2, 3, parameter.shape).float())

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = self.first(batch).relu()
        hidden.register_hook(lambda gradient: gradient * self.factor.to(gradient.dtype))
        answer: torch.Tensor = self.second(hidden)
        return answer


class Calls(TorchDispatchMode):
    """Counts what is asked of the process group."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in func.namespace:
            self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


def share(rank: int, world: int) -> slice:
    return slice(BATCH * rank // world, BATCH * (rank + 1) // world)


def batches(pair: Pair, mine: slice) -> Iterator[torch.Tensor]:
    """Of each update the part of the batch that is ``mine``, for which ``pair`` is set."""
    torch.manual_seed(1)
    for update in range(UPDATES):
        batch = torch.randint(-2, 3, (BATCH, 5)).float()
        factor = torch.ones(BATCH, 7)
        factor[-1, ROW] = torch.inf if update == BAD else 1.0
        pair.factor = factor[mine]
        yield batch[mine]


def reported(url: str, wrap: Wrap | None = None, rank: int = 0, world: int = 1) -> str:
    """The run that a server has of the training."""
    pair = Pair()
    model = pair if wrap is None else wrap(pair)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-6)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    with scalescope.watch(model, optimizer, scaler, url=url, every=1) as scope:
        for batch in batches(pair, share(rank, world)):
            optimizer.zero_grad()
            scaler.scale(model(batch).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    return scope.run_id


def train(
    wrap: Wrap | None = None,
    *,
    rank: int = 0,
    world: int = 1,
    scaler: torch.amp.GradScaler | None = None,
    watched: bool = True,
    alone: bool = False,
    inner: bool = False,
    late: bool = False,
    average: bool = False,
    clips: bool = False,
) -> Told:
    """Train :class:`Pair` on this rank's share of each batch.

    ``alone``: after the first update it turns out that no other rank is recorded.
    ``inner``: it is the wrapped model that is watched; ``late``: it is wrapped after that. ``average``: the trainer
    averages gradients over ranks by hand; ``clips``: clips them by their norm.
    """
    pair = Pair()
    model = pair if wrap is None or late else wrap(pair)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-6)
    scaler = scaler or torch.amp.GradScaler("cpu", init_scale=2.0**8)
    seen = pair if inner or late else model
    ears = watching(seen, optimizer, scaler, every=1, histograms=KINDS) if watched else nullcontext()
    with ears as heard, Calls() as calls:
        model = wrap(pair) if wrap is not None and late else model
        for update, batch in enumerate(batches(pair, share(rank, world))):
            optimizer.zero_grad()
            scaler.scale(model(batch).mean()).backward()
            if average:
                _average(model, world)
            if clips:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            if alone and heard is not None and update == 0:
                heard.tap.shares.stand_alone()
        records = [] if heard is None else heard.end()
    told = _told(records)
    told["weights"] = [_local(parameter).tolist() for parameter in model.parameters()]
    told["calls"] = dict(calls.counts)
    return told


def _average(model: nn.Module, world: int) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        distributed.all_reduce(parameter.grad)
        parameter.grad.div_(world)


def _local(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def _told(records: Sequence[wire.Record]) -> Told:
    if not records:
        return {}
    layout = layouts(records)[-1]
    names = [parameter.name for parameter in layout.parameters]
    looked: dict[str, float] = {}
    for record in records:
        if isinstance(record, wire.Tally) and record.subject == "parameter" and record.step == 0:
            indexes = np.frombuffer(record.indexes, "<i4").tolist()
            counted = np.frombuffer(record.columns["looked"], "<f8").tolist()
            looked = {names[index]: count for index, count in zip(indexes, counted, strict=True)}
    series = columns(records)
    return {
        "parts": {name: list(_fields(part)) for name, part in zip(names, layout.parts, strict=False)},
        "shapes": {parameter.name: parameter.shape for parameter in layout.parameters},
        "formats": {parameter.name: parameter.compute_format for parameter in layout.parameters},
        "samples": _counted(records, names, "grad"),
        "weight_samples": _counted(records, names, "weight"),
        "looked": looked,
        "skips": events(records, "skip"),
        "scale": series["scale"],
        "skipped": series["skipped"],
    }


def _counted(records: Sequence[wire.Record], names: Sequence[str], kind: str) -> dict[int, dict[str, list[int]]]:
    """Step -> parameter -> how many values there are of each power of two, of zero, infinity and NaN."""
    found: dict[int, dict[str, list[int]]] = {}
    for sample in records:
        if isinstance(sample, wire.Sample) and sample.kind == kind:
            table = unpack(sample.table)
            others = (table.zero, table.inf, table.nan)
            indexes = np.frombuffer(sample.parameters, "<i4").tolist() or range(len(names))
            for row, index in enumerate(indexes):
                counts = [*table.counts[row].tolist(), *(int(one[row]) for one in others)]
                found.setdefault(sample.step, {})[names[index]] = counts
    return found


def _fields(part: wire.Part) -> tuple[str, int, bool]:
    return part.placement, part.elements, part.leads


def _sharded(model: nn.Module) -> nn.Module:
    for layer in (*model.children(), model):
        fully_shard(layer)
    return model


def _narrow(model: nn.Module) -> nn.Module:
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    return model


def _hybrid(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    for layer in (*model.children(), model):
        fully_shard(layer, mesh=mesh)
    return model


def _flat(originals: bool, strategy: ShardingStrategy, mesh: tuple[int, ...] | None = None) -> Wrap:
    def wrap(model: nn.Module) -> nn.Module:
        return FullyShardedDataParallel(
            model,
            device_id=torch.device("cpu"),
            use_orig_params=originals,
            sharding_strategy=strategy,
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
            device_mesh=None if mesh is None else init_device_mesh("cpu", mesh, mesh_dim_names=("replicas", "shards")),
        )

    return wrap


def _summed_scaler() -> torch.amp.GradScaler:
    return ShardedGradScaler("cpu", init_scale=2.0**8)


def tensor_parallel(rank: int) -> Told:
    """A norm on a part of the sequence each, whose gradients are summands, before two layers that are cut in two."""
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    model = nn.ModuleDict({"norm": nn.LayerNorm(8), "up": nn.Linear(8, 6), "down": nn.Linear(6, 8)})
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(input_layouts=Shard(-1)),
    }
    parallelize_module(model, mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = torch.randn(2, 4, 8).chunk(2, dim=1)[rank]
    with watching(model, optimizer, every=1) as ears:
        for _ in range(2):
            optimizer.zero_grad()
            model["down"](model["up"](model["norm"](batch)).relu()).square().mean().backward()
            kept = {name: _local(parameter.grad).numel() for name, parameter in model.named_parameters()}
            optimizer.step()
        told = _told_without_scaler(ears.end())
    return told | {"held": kept}


def _told_without_scaler(records: Sequence[wire.Record]) -> Told:
    layout = layouts(records)[-1]
    names = [parameter.name for parameter in layout.parameters]
    counted = _counted(records, names, "grad")[1]
    return {
        "parts": {name: list(_fields(part)) for name, part in zip(names, layout.parts, strict=True)},
        "counted": {name: sum(counts) for name, counts in counted.items()},
    }


def all_of(rank: int, world: int) -> dict[str, Told]:
    """By what each training is called. Four ranks run those that differ with their number."""
    here: dict[str, Any] = {"rank": rank, "world": world}
    found = {
        "ddp": train(DistributedDataParallel, **here),
        "fsdp2": train(_sharded, **here),
        "fsdp1, originals": train(_flat(True, FULL), scaler=_summed_scaler(), **here),
    }
    if world == 4:
        hybrid = _flat(True, ShardingStrategy.HYBRID_SHARD, (2, 2))
        return found | {
            "hybrid": train(_hybrid, **here),
            "fsdp1, hybrid": train(hybrid, scaler=_summed_scaler(), **here),
        }
    return found | {
        "ddp, the inner model watched": train(DistributedDataParallel, inner=True, **here),
        "ddp, wrapped later": train(DistributedDataParallel, late=True, **here),
        "ddp, not watched": train(DistributedDataParallel, watched=False, **here),
        "ddp, rank 1 watched": train(DistributedDataParallel, watched=rank == 1, alone=True, **here),
        "fsdp2, not watched": train(_sharded, watched=False, **here),
        "fsdp2, rank 1 watched": train(_sharded, watched=rank == 1, **here),
        "fsdp2, clipped": train(_sharded, clips=True, **here),
        "fsdp2, clipped, not watched": train(_sharded, clips=True, watched=False, **here),
        "fsdp2, bf16": train(_narrow, **here),
        "by hand": train(average=True, **here),
        "fsdp1, flat": train(_flat(False, FULL), scaler=_summed_scaler(), **here),
        "fsdp1, replicas": train(_flat(True, ShardingStrategy.NO_SHARD), scaler=_summed_scaler(), **here),
        "fsdp1, not watched": train(_flat(True, FULL), scaler=_summed_scaler(), watched=False, **here),
        "tensor parallel": tensor_parallel(rank),
    }


def main(rank: int, world: int, rendezvous: str, url: str | None = None) -> dict[str, Any]:
    """What this rank tells of each training; with ``url`` the run of each."""
    # Torch's own, of what it means to do differently one day.
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    if url is None:
        told: dict[str, Any] = all_of(rank, world)
    else:
        told = {
            name: reported(url, wrap, rank, world)
            for name, wrap in (("ddp", DistributedDataParallel), ("fsdp2", _sharded))
        }
    distributed.barrier()
    distributed.destroy_process_group()
    return told
