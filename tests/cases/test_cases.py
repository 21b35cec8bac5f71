"""What the API tells of each reported trouble: the facts that its finding will rest on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.cases.loops import CASES
from tests.serving import Served

torch.set_num_threads(1)


class Told:
    """The API's answers about the run of one case."""

    def __init__(self, served: Served, case: str) -> None:
        self._served = served
        self.run = CASES[case](served.url).run_id

    def get(self, path: str) -> Any:
        return self._served.get(f"/api/runs/{self.run}{path}").json()

    def windows(self) -> dict[int, dict[str, Any]]:
        """Update -> the facts of its window."""
        items = self.get("/facts")["items"]
        return {step: item["facts"] for item in items for step in range(item["first_step"], item["last_step"] + 1)}

    def layer(self, measure: str, row: int = 0) -> list[float | None]:
        """One measure of one parameter or module over the updates."""
        found: list[float | None] = self.get(f"/layers?measure={measure}")["values"][row]
        return found


def test_a_gradient_that_nobody_clears_is_told_as_stale(served: Served) -> None:
    windows = Told(served, "missing zero_grad").windows()
    assert windows[1]["zero_grad"] is False
    assert windows[1]["stale_nonfinite"] == 2
    assert "stale_nonfinite" not in windows[0]


def test_a_clip_while_scaled_is_told_with_its_factor(served: Served) -> None:
    window = Told(served, "clip before unscale").windows()[0]
    clip = window["clip_while_scaled"]
    assert clip["scale"] == 128.0
    assert clip["factor"] == pytest.approx(1 / 128, rel=1e-4)
    assert clip["coefficient"] == pytest.approx(1 / 640, rel=1e-4)


def test_a_loss_that_was_not_scaled_is_told(served: Served) -> None:
    windows = Told(served, "loss not scaled").windows()
    assert "loss_scaled" not in windows[0]
    assert windows[4]["loss_scaled"] is False


def test_a_closure_beside_a_scaler_is_told(served: Served) -> None:
    assert Told(served, "positional closure").windows()[0]["closure_with_scaler"] is True


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_scheduler_that_follows_attempts_is_told_beside_the_applied_updates(served: Served) -> None:
    told = Told(served, "scheduler ahead")
    assert told.get("")["skipped"] > 0
    assert told.windows()[7]["scheduler"] == {"class": "LinearLR", "steps": 1, "follows": "attempted"}
    assert told.get("/series?name=scheduler_steps")["series"]["scheduler_steps"]["last"][-1] == 8


def test_a_skip_inside_a_fused_kernel_is_told(served: Served) -> None:
    windows = Told(served, "fused skip").windows()
    assert windows[1]["skipped_in_kernel"] is True
    assert "skipped_in_kernel" not in windows[2]


def test_a_window_of_two_scales_is_told_with_its_factors(served: Served) -> None:
    window = Told(served, "mixed scales").windows()[0]
    assert (window["scales"], window["unscaled_by"], window["factors"]) == ([8.0, 16.0], 16.0, [0.5, 1.0])


def test_the_first_module_to_turn_nonfinite_in_the_forward_is_named(served: Served) -> None:
    (event, *_) = Told(served, "masked row").get("/events?kind=nonfinite")["items"]
    assert (event["data"]["where"], event["data"]["name"]) == ("forward", "1")


def test_the_first_module_to_turn_nonfinite_in_the_backward_is_named(served: Served) -> None:
    (event, *_) = Told(served, "norm of zeros").get("/events?kind=nonfinite")["items"]
    assert event["data"]["where"] == "backward"
    assert event["data"]["name"] == "1"


def test_updates_too_small_for_bf16_are_told_as_absorbed(served: Served) -> None:
    told = Told(served, "bf16 weights")
    assert told.layer("absorbed_share") == [1.0, 1.0, 1.0]
    assert told.layer("unchanged_share") == [1.0, 1.0, 1.0]


def test_an_eps_that_is_zero_in_half_is_told(served: Served) -> None:
    (state,) = Told(served, "adam eps").get("/facts")["setup"]["optimizer_state"]
    assert (state["eps"], state["eps_in_format"], state["eps_lost"]) == (1e-8, 0.0, True)


def test_what_an_fp32_backward_would_have_kept_is_told(served: Served) -> None:
    (probe,) = Told(served, "no scaler").get("/probes")["items"]
    assert probe["data"]["format"] == "fp16"
    assert dict(zip(probe["parameters"], probe["true_underflow"], strict=True))["0.weight"] > 0.1


def test_a_forward_within_an_octave_of_the_ceiling_is_told(served: Served) -> None:
    told = Told(served, "near the ceiling")
    grid = told.get("/layers?measure=forward_headroom")
    headroom = dict(zip(grid["parameters"], grid["values"], strict=True))
    assert headroom["0"][0] == pytest.approx(0.4485, abs=1e-3)
