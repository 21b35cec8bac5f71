"""Real trainings on two and four ranks, merged on the server: what the same training on one rank shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.launching import launched
from tests.programs import Programs
from tests.ranked import BAD, UPDATES, reported
from tests.serving import Served, ok

pytestmark = [
    pytest.mark.usefixtures("plain_environment"),
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo"),
]

SHARES = "&".join(f"name={name}" for name in ("zero_share", "flush_share", "amax", "grad_norm"))


def shown(served: Served, run: str) -> dict[str, Any]:
    """What the pages read of a run, all ranks together."""
    found = {
        name: ok(served, f"/api/runs/{run}/histogram?parameter={name}")
        for name in ("first.weight", "first.bias", "second.weight", "second.bias")
    }
    found["layers"] = ok(served, f"/api/runs/{run}/layers?measure=zero_share")
    found["series"] = ok(served, f"/api/runs/{run}/series?{SHARES}")
    return found


def test_ranks_merged_are_the_training_on_one_rank(
    served: Served, programs: Programs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    alone = shown(served, reported(served.url))
    assert len(alone["layers"]["step"]) == UPDATES
    norms = taken_norms(alone)
    for world in (2, 4):
        told = launched(programs, world, tmp_path_factory.mktemp("ranks"), "tests.ranked", served.url)
        assert all(rank == told[0] for rank in told)
        for name, run in told[0].items():
            found = shown(served, run)
            # Sums of squares of shards are added in another order, each in fp32.
            assert taken_norms(found) == pytest.approx(norms, rel=1e-6), (name, world)
            assert found == alone, (name, world)
            assert_one_run_of_all(served, run, world)


def taken_norms(found: dict[str, Any]) -> list[float]:
    """The norms of what is shown, taken out of it, but for the one of the update whose norm is not finite."""
    norms: list[float | None] = found["series"]["series"].pop("grad_norm")["last"]
    assert [value is None for value in norms] == [step == BAD for step in range(UPDATES)]
    return [value for value in norms if value is not None]


def assert_one_run_of_all(served: Served, run: str, world: int) -> None:
    told = ok(served, f"/api/runs/{run}")
    assert (told["state"], told["rank_sentences"], told["skipped"]) == ("finished", [], 1)
    assert {rank["state"] for rank in told["rank_states"]} == {"finished"}
    skips = ok(served, f"/api/runs/{run}/events?kind=skip")["items"]
    assert {event["step"] for event in skips} == {BAD}
    assert len(skips) == len(told["ranks"]) == told["world_size"] == world
    # The mark on the scale's chart is one, with the layer that only one rank has seen overflow.
    (chart,) = ok(served, f"/api/runs/{run}/figures?chart=scale")["charts"]
    (marks,) = [trace for trace in chart["figure"]["data"] if trace["name"] == "changes"]
    assert marks["x"] == [BAD]
    assert "first non-finite: first." in marks["text"][0]
