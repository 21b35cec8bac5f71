"""Each framework among ranks: its wrappers leave no trace, and the ranks are one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.framework_ranks import UPDATES
from tests.launching import launched
from tests.programs import Programs
from tests.serving import Served
from tests.small_frameworks import Learner
from tests.small_server import free_port

WORLD = 2


@pytest.fixture
def runs(
    served: Served, programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, dict[str, Any]]:
    """What two ranks recorded, by the framework."""
    monkeypatch.setenv("SCALESCOPE_URL", served.url)
    monkeypatch.setenv("SCALESCOPE_SPOOL", str(tmp_path / "spool"))
    launched(programs, WORLD, tmp_path, "tests.framework_ranks", str(free_port()))
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
