"""Where the first non-finite value of an update came up, against where it was put."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from scalescope.taps.modules.state import State
from torch import nn

from tests.small_training import events, watching

WIDTH = 4
NAN, INF = float("nan"), float("inf")


class Spoiled(nn.Module):
    """Four layers and a norm, of which one answers a NaN, or gets one back, when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("mask", torch.full((WIDTH,), -INF))
        self.forward_at: int | None = None
        self.backward_at: int | None = None

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for place, layer in enumerate(self.layers):
            if place == self.forward_at:
                batch = batch.masked_fill(torch.eye(3, WIDTH).bool(), NAN)
            batch = torch.tanh(layer(batch))
            if place == self.backward_at:
                batch.register_hook(lambda gradient: gradient * INF)
        answer: torch.Tensor = self.norm(batch)
        return answer


def told(
    spoil: Callable[[Spoiled, int], torch.Tensor], *, scaled: bool = True, updates: int = 3, every: int = 1
) -> dict[int, dict[str, Any]]:
    """The events of a training whose batch of each update ``spoil`` makes."""
    torch.manual_seed(0)
    model = Spoiled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0) if scaled else None
    with watching(model, optimizer, scaler, every=every) as watched:
        for step in range(updates):
            optimizer.zero_grad()
            loss = model(spoil(model, step)).square().mean()
            (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
        return events(watched.end(), "nonfinite")


def batch() -> torch.Tensor:
    return torch.randn(3, WIDTH)


def place(found: dict[str, Any]) -> tuple[object, object]:
    return found["where"], found["name"]


def test_nothing_is_told_of_a_healthy_training() -> None:
    assert told(lambda *_: batch()) == {}


@pytest.mark.parametrize("layer", range(4))
def test_the_first_module_that_answers_a_nan_is_named(layer: int) -> None:
    def spoil(model: Spoiled, step: int) -> torch.Tensor:
        model.forward_at = layer if step == 1 else None
        return batch()

    found = told(spoil, updates=2)
    assert list(found) == [1]
    assert place(found[1]) == ("forward", f"layers.{layer}")
    # Three rows, each with a NaN in one column, which spreads over the row.
    assert found[1]["count"] == 3 * WIDTH
    also = [place(other) for other in found[1]["also"]]
    # The norm's statistics are spoiled although the update is skipped.
    assert also == [("backward", "norm"), ("buffer", "norm.running_mean")]


@pytest.mark.parametrize("layer", range(4))
def test_the_first_module_that_gets_an_infinity_back_is_named_though_all_before_it_do(layer: int) -> None:
    def spoil(model: Spoiled, step: int) -> torch.Tensor:
        model.backward_at = layer if step == 1 else None
        return batch()

    found = told(spoil)
    assert {step: place(data) for step, data in found.items()} == {1: ("backward", f"layers.{layer}")}
    assert found[1]["also"] == []


def test_an_input_that_is_not_finite_comes_before_all_it_brings_about() -> None:
    found = told(lambda _, step: batch() * (INF if step == 1 else 1.0), updates=2)
    assert place(found[1]) == ("input", "")
    assert found[1]["count"] < 3 * WIDTH  # what is minus infinity is what a mask may be made of
    assert place(found[1]["also"][0]) == ("forward", "layers.0")


def test_weights_that_a_nan_step_spoiled_are_named_before_what_they_answer() -> None:
    def spoil(model: Spoiled, step: int) -> torch.Tensor:
        model.backward_at = 1 if step == 1 else None
        return batch()

    found = told(spoil, scaled=False)
    assert place(found[1]) == ("backward", "layers.1")
    assert place(found[1]["also"][-1]) == ("parameter", "layers.0.weight")
    assert place(found[2]) == ("parameter", "layers.0.weight")
    assert place(found[2]["also"][0]) == ("forward", "layers.0")


def test_a_spoiled_parameter_under_a_scaler_is_named_at_the_first_skip() -> None:
    def spoil(model: Spoiled, step: int) -> torch.Tensor:
        if step == 2:
            with torch.no_grad():
                next(model.layers[3].parameters())[0, 0] = NAN
        return batch()

    # Its modules were not listened to when it was skipped.
    found = told(spoil, every=10)
    assert found == {2: {"where": "parameter", "name": "layers.3.weight", "count": 1, "also": found[2]["also"]}}


def test_what_stays_the_same_without_a_skip_is_told_once() -> None:
    class Masking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score, self.mask = nn.Linear(WIDTH, WIDTH), nn.Hardtanh(-INF, INF)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            masked = self.mask(self.score(rows).masked_fill(torch.eye(WIDTH).bool(), -INF))
            answer: torch.Tensor = torch.softmax(masked, dim=-1)
            return answer

    model = Masking()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(model, optimizer, every=2) as watched:
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(WIDTH, WIDTH)).square().sum().backward()
            optimizer.step()
        found = events(watched.end(), "nonfinite")
    assert {step: place(data) for step, data in found.items()} == {0: ("forward", "mask")}


def test_a_mask_among_the_inputs_and_buffers_is_nothing_to_tell() -> None:
    model = nn.MultiheadAttention(WIDTH, 1)
    model.register_buffer("causal", torch.full((3, 3), -INF).triu(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(model, optimizer, every=1) as watched:
        for _ in range(3):
            rows = torch.randn(3, 2, WIDTH)
            model(rows, rows, rows, attn_mask=model.causal)[0].sum().backward()
            optimizer.step()
        assert events(watched.end(), "nonfinite") == {}


def test_a_storm_of_skips_is_told_of_few_updates_and_state_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[State] = []

    def look(models: Sequence[nn.Module]) -> State:
        looked.append(State(models))
        return looked[-1]

    monkeypatch.setattr("scalescope.taps.modules.tap.State", look)

    def spoil(model: Spoiled, _: int) -> torch.Tensor:
        model.backward_at = 2
        return batch()

    found = told(spoil, updates=100, every=1000)
    assert len(looked) == 1
    assert list(found) == list(range(9))


def test_what_is_not_initialized_yet_is_passed_over() -> None:
    model = nn.Module()
    model.register_buffer("later", nn.parameter.UninitializedBuffer())
    model.register_buffer("now", torch.tensor([INF, 1.0]))
    state = State([model])
    assert state.names == ["now"]
    assert state.heard.numbers().nonfinite.tolist() == [1]


def test_weights_that_a_skipped_update_spoils_come_after_the_gradients_that_spoilt_them() -> None:
    """openai/CLIP, nanoGPT#167: an optimizer steps although the scaler has found an overflow."""
    torch.manual_seed(0)
    model = Spoiled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with watching(model, optimizer, scaler, every=1) as watched:
        for step in range(3):
            optimizer.zero_grad()
            model.backward_at = 2 if step == 1 else None
            scaler.scale(model(batch()).square().mean()).backward()
            scaler.step(optimizer)
            if step == 1:
                nn.init.constant_(next(iter(model.layers[3].parameters())), NAN)
            scaler.update()
        found = events(watched.end(), "nonfinite")
    assert place(found[1]) == ("backward", "layers.2")
    assert found[1]["also"] == [{"where": "parameter", "name": "layers.3.weight", "count": WIDTH * WIDTH}]
    # From there on they are what an update begins with.
    assert place(found[2]) == ("parameter", "layers.3.weight")
