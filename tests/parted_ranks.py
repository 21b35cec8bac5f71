"""A rank of two trainings: one whose ranks decide together whether to skip, and one in which each decides alone."""

from __future__ import annotations

import warnings

import scalescope
import torch
from torch import distributed, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel

from tests.judged import reach

UPDATES = 8
BAD = 3


def train(url: str, model: nn.Module) -> str:
    """The last rank overflows once (C78). The run."""
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-3), GradScaler("cpu", init_scale=2.0**12)
    last = distributed.get_rank() == distributed.get_world_size() - 1
    with scalescope.watch(model, optimizer, scaler, url=url, every=1) as scope:
        for step in range(UPDATES):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(torch.ones(4, 8)).float().square().mean()
            scaler.scale(loss * (torch.inf if last and step == BAD else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
        reach(scope)
        # The first rank answers the others for as long as it is watched.
        distributed.barrier()
    return scope.run_id


def main(rank: int, world: int, rendezvous: str, url: str) -> dict[str, str]:
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    torch.manual_seed(0)
    together = train(url, DistributedDataParallel(nn.Linear(8, 1)))
    apart = train(url, nn.Linear(8, 1))
    distributed.destroy_process_group()
    return {"together": together, "apart": apart}
