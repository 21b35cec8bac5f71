"""One rank of the distributed loop, and what was compared on it."""

from __future__ import annotations

from torch import distributed as dist

from tests.loops.accumulation import distributed
from tests.loops.catalogue import compared


def main(rank: int, world: int, rendezvous: str) -> str:
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    try:
        return "; ".join(compared(distributed))
    finally:
        dist.destroy_process_group()
