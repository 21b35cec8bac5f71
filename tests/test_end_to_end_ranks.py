"""Ranks that report to a real server: one run and one segment of all, started together, by whatever way they come."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.launching import launched
from tests.programs import Programs
from tests.reporting_ranks import BAD, UPDATES
from tests.serving import Served

pytestmark = [
    pytest.mark.usefixtures("plain_environment"),
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo"),
]

TORCHRUN = "from torch.distributed.run import main; main()"


def skips(served: Served, run: str) -> dict[int, dict[int, Any]]:
    """Step -> rank -> what it said of its skip."""
    found: dict[int, dict[int, Any]] = {}
    for event in served.get(f"/api/runs/{run}/events?kind=skip").json()["items"]:
        found.setdefault(event["step"], {})[event["rank"]] = event["data"]
    return found


def reports(served: Served, run: str) -> set[tuple[str, int]]:
    """Each segment and rank that sent something, and of which nothing is missing."""
    ledger = served.get(f"/api/runs/{run}").json()["ledger"]
    assert all((row["dropped"], row["lost"]) == (0, 0) and row["received"] for row in ledger)
    return {(row["segment"], row["rank"]) for row in ledger}


def test_four_ranks_that_know_the_server_by_two_names_are_one_run(
    served: Served, programs: Programs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    told = launched(programs, 4, tmp_path_factory.mktemp("ranks"), "tests.reporting_ranks", served.url)
    runs = {rank["run"] for rank in told}
    assert runs == {run["id"] for run in served.get("/api/runs").json()["items"]}
    (run,) = runs
    # Rank 0 knows it at once, the others when they are told.
    assert told[0]["at first"] == run
    assert {rank["at first"] for rank in told} <= {run, ""}
    assert [rank["url"].rpartition("/")[2] for rank in told] == [run] * 4
    answer = served.get(f"/api/runs/{run}").json()
    (segment,) = answer["segments"]
    assert reports(served, run) == {(segment["id"], rank) for rank in range(4)}
    assert (answer["attempted"], answer["skipped"], answer["state"]) == (UPDATES, 1, "finished")
    assert list(skips(served, run)) == [BAD]
    named = {rank: data["parameter"] for rank, data in skips(served, run)[BAD].items()}
    assert named == {0: "layers.2.weight", 1: None, 2: None, 3: None}
    # What all ranks hold alike is measured and sent by one of them.
    assert all(rank["sent_bytes"] < 0.8 * told[0]["sent_bytes"] for rank in told[1:])


def test_a_launcher_that_starts_all_ranks_again_makes_a_new_segment(
    served: Served, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first start fails on one rank; in the second, ranks are watched before they have met."""
    monkeypatch.setenv("SCALESCOPE_RUN", "elastic")
    monkeypatch.setenv("SCALESCOPE_URL", served.url)
    restarting = ("--standalone", "--nproc-per-node=2", "--max-restarts=1")
    done = programs.run(TORCHRUN, *restarting, "-m", "tests.reporting_ranks")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "recorded apart" not in done.stderr
    answer = served.get("/api/runs/elastic").json()
    first, second = answer["segments"]
    assert (first["end"], second["end"]) == ("crashed", "finished")
    assert reports(served, "elastic") == {(segment["id"], rank) for segment in (first, second) for rank in range(2)}
    begun = second["first_step"]
    assert {rank: data["parameter"] for rank, data in skips(served, "elastic")[begun + BAD].items()} == {
        0: "layers.2.weight",
        1: None,
    }
