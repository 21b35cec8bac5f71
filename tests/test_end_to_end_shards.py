"""Real trainings on two and four ranks, merged on the server: what the same training on one rank shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.launching import launched
from tests.ranked import BAD, UPDATES
from tests.serving import Served, ok
from tests.sharded_ranks import train

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


def test_ranks_merged_are_the_training_on_one_rank(served: Served, tmp_path_factory: pytest.TempPathFactory) -> None:
    train("alone", served.url, lambda model: model, slice(None))
    for world in (2, 4):
        launched(world, tmp_path_factory.mktemp("ranks"), "tests.sharded_ranks", served.url)
    assert len(shown(served, "alone")["layers"]["step"]) == UPDATES
    for run in ("ddp-2", "fsdp2-2", "ddp-4", "fsdp2-4"):
        found, expected, told = shown(served, run), shown(served, "alone"), ok(served, f"/api/runs/{run}")
        # Sums of squares of shards are added in another order, each in fp32.
        norms = [answer["series"]["series"].pop("grad_norm")["last"] for answer in (found, expected)]
        assert [value is None for value in norms[0]] == [step == BAD for step in range(UPDATES)], run
        assert norms[0][:BAD] + norms[0][BAD + 1 :] == pytest.approx(norms[1][:BAD] + norms[1][BAD + 1 :], rel=1e-6), (
            run
        )
        assert found == expected, run
        assert (told["state"], told["rank_sentences"], told["skipped"]) == ("finished", [], 1), run
        assert {rank["state"] for rank in told["rank_states"]} == {"finished"}, run
        skips = ok(served, f"/api/runs/{run}/events?kind=skip")["items"]
        assert {event["step"] for event in skips} == {BAD}, run
        assert len(skips) == len(told["ranks"]) == told["world_size"], run
        # The mark on the scale's chart is one, with the layer that only one rank has seen overflow.
        (chart,) = ok(served, f"/api/runs/{run}/figures?chart=scale")["charts"]
        (marks,) = [trace for trace in chart["figure"]["data"] if trace["name"] == "changes"]
        assert marks["x"] == [BAD], run
        assert "first non-finite: first." in marks["text"][0], run
