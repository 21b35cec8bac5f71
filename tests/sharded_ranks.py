"""A rank of a wrapped model that reports to a server: ``python -m tests.sharded_ranks RANK WORLD RENDEZVOUS URL``.

All numbers are small multiples of powers of two, as in :mod:`tests.ranked`, so that ranks add up to the last count.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import scalescope
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.ranked import BAD, BATCH, ROW, UPDATES, Pair, share


def sharded(model: nn.Module) -> nn.Module:
    for layer in (*model.children(), model):
        fully_shard(layer)
    return model


WRAPS: dict[str, Callable[[nn.Module], nn.Module]] = {"ddp": DistributedDataParallel, "fsdp2": sharded}


def train(run: str, url: str, wrap: Callable[[nn.Module], nn.Module], mine: slice) -> None:
    pair = Pair()
    model = wrap(pair)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-6)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    torch.manual_seed(1)
    with scalescope.watch(model, optimizer, scaler, run=run, url=url, every=1):
        for update in range(UPDATES):
            batch = torch.randint(-2, 3, (BATCH, 5)).float()
            factor = torch.ones(BATCH, 7)
            factor[-1, ROW] = torch.inf if update == BAD else 1.0
            pair.factor = factor[mine]
            optimizer.zero_grad()
            scaler.scale(model(batch[mine]).mean()).backward()
            scaler.step(optimizer)
            scaler.update()


def main(rank: int, world: int, rendezvous: str, url: str) -> None:
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    for name, wrap in WRAPS.items():
        train(f"{name}-{world}", url, wrap, share(rank, world))
    distributed.destroy_process_group()
    sys.stdout.write("null")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
