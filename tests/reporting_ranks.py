"""A rank that reports to a server.

As a program it is one of torchrun's, which fails at its first start; the server is then ``SCALESCOPE_URL``.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import scalescope
import torch
from torch import distributed
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.nn.parallel import DistributedDataParallel

from tests.small_training import Chain, fp16

UPDATES = 6
BAD = 2


class Failure(RuntimeError):
    """What ends a training that a launcher then starts again."""


def updates(
    model: torch.nn.Module, chain: Chain, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, *, fails: bool
) -> None:
    last = distributed.get_rank() == distributed.get_world_size() - 1
    torch.manual_seed(distributed.get_rank())
    for update in range(UPDATES):
        if fails and last and update == BAD + 1:
            raise Failure("this rank fails")
        chain.overflow_at = 2 if last and update == BAD else None
        optimizer.zero_grad()
        with fp16():
            loss = model(torch.randn(4, 8)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def report(url: str | None, *, early: bool = False, fails: bool = False, **meeting: Any) -> dict[str, object]:
    """``early``: the training is watched before the ranks have met."""
    torch.manual_seed(0)
    chain = Chain()
    optimizer = torch.optim.SGD(chain.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    model: torch.nn.Module = chain
    if not early:
        distributed.init_process_group("gloo", **meeting)
        model = DistributedDataParallel(chain)
    with scalescope.watch(
        model, optimizer, scaler, url=url, every=1, name=f"of rank {os.environ.get('RANK')}"
    ) as scope:
        at_first = scope.run_id
        if early:
            distributed.init_process_group("gloo", **meeting)
            model = DistributedDataParallel(chain)
        updates(model, chain, optimizer, scaler, fails=fails)
    distributed.destroy_process_group()
    return {"at first": at_first, "run": scope.run_id, "url": scope.url, "sent_bytes": scope.stats.sent_bytes}


def met_by_torchrun() -> dict[str, Any]:
    """Its store outlives a start, and gloo finds the addresses of the dead in it: those of each start apart."""
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    start = f"start {os.environ['TORCHELASTIC_RESTART_COUNT']}"
    ranks = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    return {"store": PrefixStore(start, store), **ranks}


def main(rank: int, world: int, rendezvous: str, url: str) -> dict[str, object]:
    warnings.simplefilter("ignore")
    meeting: dict[str, Any] = {"init_method": f"file://{rendezvous}", "rank": rank, "world_size": world}
    # Two names of the same server.
    return report(url.replace("127.0.0.1", "localhost") if rank % 2 else url, **meeting)


def started_by_torchrun() -> None:
    warnings.simplefilter("ignore")
    again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
    report(None, early=again, fails=not again, **met_by_torchrun())


if __name__ == "__main__":
    started_by_torchrun()
