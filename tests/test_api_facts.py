"""What held of a training, over a real server: modules, facts of windows, set-ups, non-finite values."""

from __future__ import annotations

import pytest

from tests.batches import Dictation
from tests.serving import Served, error, hello, layout, ok

# A clip while scaled at updates 4 to 6 of an ordinary loop of 10.
USUAL = {"micro_batches": 2, "unscale": "explicit", "clip": {"kind": "norm", "limit": 1.0, "when": "unscaled"}}
WRONG = USUAL | {"clip_while_scaled": {"coefficient": 0.0078125, "intended": 1.0, "factor": 0.0078125, "scale": 128.0}}


@pytest.fixture
def told(served: Served) -> Served:
    say = Dictation(1)
    with served.trainer(hello()) as trainer:
        trainer.deliver(
            layout(0, ("", "Net"), ("block", "Linear"), ("act", "GELU")),
            say.setup(0, autocast={"cpu": "bf16"}),
            say.steps(0, 6, (4, USUAL), (2, WRONG), scheduler_steps=range(6), forward_ms={0: 2.5}),
            say.steps(6, 4, (1, WRONG), (3, USUAL), clip_coefficient=[0.0078125, 1.0, 1.0, 0.5]),
            say.setup(8, autocast={"cpu": "fp16"}),
            say.event(3, "nonfinite", '{"where": "forward", "name": "act", "count": 7, "also": ["block"]}'),
        )
    return served


def test_modules_come_in_forward_order_with_what_they_own_themselves(told: Served) -> None:
    assert ok(told, "/api/runs/run-1")["modules"] == [
        {"name": "", "kind": "Net", "parameters": 0, "numel": 0},
        {"name": "block", "kind": "Linear", "parameters": 2, "numel": 32},
        {"name": "act", "kind": "GELU", "parameters": 0, "numel": 0},
    ]


def test_facts_are_told_once_for_updates_alike(told: Served) -> None:
    answer = ok(told, "/api/runs/run-1/facts")
    place = {"segment": "seg-1", "rank": 0}
    assert answer == {
        "items": [
            {"first_step": 0, "last_step": 3, **place, "facts": USUAL},
            {"first_step": 4, "last_step": 6, **place, "facts": WRONG},
            {"first_step": 7, "last_step": 9, **place, "facts": USUAL},
        ],
        "setup": {"autocast": {"cpu": "fp16"}},
        "next": None,
    }


def test_facts_of_a_range_are_the_windows_that_meet_it_and_the_set_up_at_its_end(told: Served) -> None:
    answer = ok(told, "/api/runs/run-1/facts?from=5&to=8")
    assert [item["first_step"] for item in answer["items"]] == [4, 7]
    assert answer["setup"] == {"autocast": {"cpu": "bf16"}}
    assert ok(told, "/api/runs/run-1/facts?to=0") == {"items": [], "setup": {}, "next": None}
    assert ok(told, "/api/runs/run-1/facts?rank=1") == {"items": [], "setup": {}, "next": None}


def test_facts_come_in_pages(told: Served) -> None:
    first = ok(told, "/api/runs/run-1/facts?limit=2")
    second = ok(told, f"/api/runs/run-1/facts?limit=2&cursor={first['next']}")
    assert [item["last_step"] for item in first["items"] + second["items"]] == [3, 6, 9]
    assert second["next"] is None
    assert error(told, "/api/runs/run-1/facts?cursor=none", 422)["field"] == "cursor"
    assert error(told, "/api/runs/other/facts", 404)["field"] == "run"


def test_what_varies_from_update_to_update_is_a_series(told: Served) -> None:
    answer = ok(told, "/api/runs/run-1/series?name=clip_coefficient&name=scheduler_steps&name=forward_ms")["series"]
    assert answer["clip_coefficient"]["last"] == [0.0078125, 1.0, 1.0, 0.5]
    assert answer["scheduler_steps"]["step"] == list(range(6))
    assert answer["forward_ms"]["last"] == [2.5]
    coarse = ok(told, "/api/runs/run-1/series?name=clip_coefficient&points=1")["series"]["clip_coefficient"]
    assert (coarse["n"], coarse["min"]) == ([4], [0.0078125])


def test_the_first_non_finite_value_is_an_event(told: Served) -> None:
    (event,) = ok(told, "/api/runs/run-1/events?kind=nonfinite")["items"]
    assert (event["step"], event["data"]["where"], event["data"]["name"]) == (3, "forward", "act")
