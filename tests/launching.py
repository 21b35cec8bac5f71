"""Starts the ranks of a program, each a process of its own, and collects what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Four processes that import torch on two busy cores take most of it.
DEADLINE_S = 170


def launched(world: int, folder: Path, module: str, *more: str) -> list[Any]:
    """What each rank says of ``module``, a program that takes its rank, the world, a file to meet at, and ``more``."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(rank), str(world), str(folder / "rendezvous"), *more],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        said = [rank.communicate(timeout=DEADLINE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(errors[-3000:] for _, errors in said)
    return [json.loads(answer) for answer, _ in said]
