"""Built-in rules on real trainings: those that must fire, by whose fault, and a healthy one on which none does."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import scalescope
import torch
from torch import nn
from torch.amp import GradScaler

from tests.serving import Served, serving
from tests.small_link import until

torch.set_num_threads(1)

WIDTH = 8
# Windows of 1000 updates are known from half of it on.
UPDATES = 650


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(str(tmp_path_factory.mktemp("trained") / "scalescope.db")) as served:
        yield served


def fired(served: Served, run: str) -> dict[str, str | int | None]:
    """The rules that fired on ``run``, once it is judged, and the culprit of each."""
    until(lambda: served.store.reader.judgement(run)[0] >= UPDATES)
    found = [each for each in served.store.reader.alerts()[0] if each.alert.run == run]
    return {
        each.alert.name.removeprefix("pack/"): moved.culprit
        for each in found
        for moved in each.transitions
        if moved.after == "firing"
    }


class Parts(nn.Module):
    """Small layers in fp16, each with a trouble of its own where ``troubled``."""

    def __init__(self, troubled: bool) -> None:
        super().__init__()
        self.troubled = troubled
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        if troubled:
            self.dead, self.faint = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
            self.coarse = nn.Parameter(torch.ones(WIDTH, dtype=torch.bfloat16))
            self.loud = nn.Linear(WIDTH, 1, bias=False).requires_grad_(False)
            nn.init.constant_(self.loud.weight, 6000.0)

    def forward(self, batch: torch.Tensor, faintness: float) -> torch.Tensor:
        loss: torch.Tensor = (self.second(torch.tanh(self.first(batch))).float() - 1).square().mean()
        if self.troubled:
            self.loud(torch.ones_like(batch))
            loss = loss + 0.0 * self.dead(batch).float().mean() + faintness * self.faint(batch).float().mean()
            loss = loss + (1e-4 * self.coarse.float()).square().sum()
        return loss


def train_parts(url: str, troubled: bool) -> str:
    torch.manual_seed(0)
    model = Parts(troubled)
    optimizer = torch.optim.SGD((each for each in model.parameters() if each.requires_grad), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=2.0**12)
    batches = torch.randn(64, 4, WIDTH)
    with scalescope.watch(model, optimizer, scaler, url=url, every=25) as scope:
        for step in range(UPDATES):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                # The first gradients say which format a layer is computed in.
                loss = model(batches[step % 64], faintness=1.0 if step == 0 else 1e-9)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scope.log(loss=loss.detach())
    return scope.run_id


def test_none_fires_on_a_healthy_training(one_server: Served) -> None:
    assert fired(one_server, train_parts(one_server.url, troubled=False)) == {}


def test_each_trouble_of_a_layer_fires_and_names_it(one_server: Served) -> None:
    assert fired(one_server, train_parts(one_server.url, troubled=True)) == {
        "zero-gradients": "dead.weight",
        "vanishing-gradients": "faint.weight",
        "unchanged-parameters": "coarse",
        "absorbed-updates": "coarse",
        "headroom-low": "loud",
    }


def train_badly(url: str) -> str:
    """Steps as large as the weights, one update in ten skipped, and at the end a loss that jumps, and is NaN."""
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    scaler = GradScaler("cpu", init_scale=2.0**12, growth_interval=9, growth_factor=2.0)
    batches = torch.randn(64, 4, WIDTH)
    with scalescope.watch(model, optimizer, scaler, url=url, every=50) as scope:
        for step in range(UPDATES):
            optimizer.zero_grad()
            loss = torch.tanh(model(batches[step % 64])).square().mean()
            overflows = step >= 100 and (step % 10 == 0 or 600 <= step < 610)
            (scaler.scale(loss) * (torch.inf if overflows else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            jumps = 50.0 if 620 <= step < 624 else 1.0
            scope.log(loss=loss.detach() * (math.nan if step == UPDATES - 2 else jumps))
    return scope.run_id


def test_each_trouble_of_the_loop_fires(one_server: Served) -> None:
    found = fired(one_server, train_badly(one_server.url))
    thresholds = {"update-ratio-high", "skip-rate", "skip-streak", "loss-spike", "loss-not-finite"}
    # So many skips are a finding too, and so is a scaler in fp32.
    assert set(found) == thresholds | {"scale-thrash", "scaler-useless"}
