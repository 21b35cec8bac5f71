"""Each framework among ranks: its wrappers leave no trace, and the ranks are one run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.framework_ranks import UPDATES
from tests.serving import Served
from tests.small_frameworks import Learner
from tests.small_server import free_port

ROOT = Path(__file__).parents[1]
WORLD = 2


@pytest.fixture
def runs(served: Served, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """What two ranks recorded, by the framework."""
    port, command = free_port(), [sys.executable, "-m", "tests.framework_ranks", str(tmp_path)]
    place = {"WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ours = {"SCALESCOPE_URL": served.url, "SCALESCOPE_SPOOL": str(tmp_path / "spool"), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(command, cwd=ROOT, env={**os.environ, **place, **ours, "RANK": rank, "LOCAL_RANK": rank})
        for rank in map(str, range(WORLD))
    ]
    try:
        assert [rank.wait(timeout=150) for rank in ranks] == [0] * WORLD
    finally:
        for rank in ranks:
            rank.kill()
    listed = served.get("/api/runs").json()["items"]
    assert len(listed) == 4
    return {run["project"]: served.get(f"/api/runs/{run['id']}").json() for run in listed}


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_two_ranks_are_one_run_of_the_users_own_names(runs: dict[str, dict[str, Any]]) -> None:
    names = [name for name, _ in Learner().named_parameters()]
    prefixes = {"accelerate": "", "huggingface": "learner.", "fabric": "", "lightning": "learner."}
    assert runs.keys() == prefixes.keys()
    for project, prefix in prefixes.items():
        run = runs[project]
        assert [parameter["name"] for parameter in run["parameters"]] == [prefix + name for name in names]
        assert (run["attempted"], run["state"], len(run["segments"])) == (UPDATES, "finished", 1)
        assert {entry["rank"] for entry in run["ledger"]} == set(range(WORLD))
    assert [runs[project]["skipped"] for project in prefixes] == [1, 1, 0, 1]
