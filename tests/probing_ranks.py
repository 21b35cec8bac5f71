"""A rank of a data-parallel training that probes."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from scalescope import wire
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.small_training import bf16, watching


class Summing(nn.Module):
    """What batch norm over ranks does: its forward sums over them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        mean = self.layer(batch).mean(dim=0)
        distributed.all_reduce(mean.detach())
        centred: torch.Tensor = batch - mean
        return centred


def train(probe: Callable[[nn.Module, torch.Tensor], object] | None) -> list[float]:
    """The weights after four updates. ``probe`` gets the wrapped model in the middle of each window."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(distributed.get_rank())
    for _ in range(4):
        batch = torch.randn(6, 4)
        optimizer.zero_grad()
        with bf16():
            loss = model(batch).float().square().mean()
        loss.backward()
        if probe is not None:
            probe(model, batch)
        with bf16():
            loss = model(batch).float().square().mean()
        loss.backward()
        optimizer.step()
    return torch.cat([tensor.flatten().float() for tensor in inner.state_dict().values()]).tolist()


def probing(found: list[float | None], *, wrapped: bool) -> Callable[[nn.Module, torch.Tensor], None]:
    def probe(model: nn.Module, batch: torch.Tensor) -> None:
        # One rank alone: whatever it would send, the other one does not answer.
        if distributed.get_rank() == 0:
            watched = model if wrapped else model.module
            assert isinstance(watched, nn.Module)
            with watching(watched, torch.optim.SGD(watched.parameters(), lr=0.1)) as ears:
                result = ears.tap.probe(lambda: model(batch).float().square().mean(), dtype=torch.bfloat16)
            found.append(None if result is None else result.total.relative_error)

    return probe


def refusal() -> str:
    model = Summing()
    with watching(model, torch.optim.SGD(model.parameters(), lr=0.1)) as ears:
        ears.tap.probe(lambda: model(torch.ones(2, 4)).sum(), dtype=torch.bfloat16)
        (probe,) = (record for record in ears.end() if isinstance(record, wire.Probe))
    reason: str = json.loads(probe.data)["reason"]
    return reason


def main(rank: int, world: int, rendezvous: str) -> dict[str, object]:
    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    found: list[float | None] = []
    plain = train(None)
    told = {
        "alike": [train(probing(found, wrapped=wrapped)) == plain for wrapped in (True, False)],
        "errors": found,
        "reason": refusal() if rank == 0 else "",
    }
    distributed.barrier()
    distributed.destroy_process_group()
    return told
