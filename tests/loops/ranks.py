"""One rank of the distributed loop: ``python -m tests.loops.ranks STORE RANK`` prints what was compared on it."""

from __future__ import annotations

import sys

from torch import distributed as dist

from tests.loops.accumulation import distributed
from tests.loops.catalogue import compared


def main(store: str, rank: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        sys.stdout.write("; ".join(compared(distributed)))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
