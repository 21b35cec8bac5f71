"""Fabric: one line watches what was set up, with the scaler of its precision."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision
from scalescope.integrations.lightning import watch
from scalescope.scope import Scope

from tests.small_frameworks import POISONED, Batches, Learner, fingerprint, scaler_of
from tests.small_server import Shelf, SmallServer, serving
from tests.small_training import columns, events, layouts, steps, windows

pytestmark = [
    pytest.mark.usefixtures("plain_environment"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
]

UPDATES = 8


def fabric_of(precision: str) -> Fabric:
    # On a CPU "16-mixed" becomes bf16; a plugin with a scaler of the CPU's own is taken as it is.
    given: dict[str, Any] = {"precision": precision}
    if precision == "16-mixed":
        given = {"plugins": MixedPrecision("16-mixed", "cpu", scaler_of())}
    return Fabric(accelerator="cpu", devices=1, **given)


@dataclass
class Loop:
    """The loop of Fabric's documentation."""

    precision: str = "16-mixed"
    fused: bool = False
    losses: list[float] = field(default_factory=list)
    moved: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.fabric = fabric_of(self.precision)
        self.learner = Learner(POISONED)
        optimizer = torch.optim.AdamW(self.learner.parameters(), lr=1e-2, fused=self.fused)
        self.model, self.optimizer = self.fabric.setup(self.learner, optimizer)
        self.data = self.fabric.setup_dataloaders(torch.utils.data.DataLoader(Batches(), batch_size=4))

    def watch(self, url: str, run: str | None = None) -> Scope:
        return watch(self.fabric, self.model, self.optimizer, url=url, run=run)

    def run(self, updates: int = UPDATES) -> None:
        for batch, _ in zip(self.data, range(updates), strict=False):
            self.optimizer.zero_grad()
            loss = self.model(batch)
            self.fabric.backward(loss)
            if not self.fused:
                # Fabric refuses to clip what a fused optimizer unscales by itself.
                self.fabric.clip_gradients(self.model, self.optimizer, max_norm=0.5, error_if_nonfinite=False)
            before = fingerprint(self.learner)
            self.optimizer.step()
            self.moved.append(fingerprint(self.learner) != before)
            self.losses.append(loss.item())


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed", "32-true"])
def test_losses_and_weights_are_the_same_to_the_bit_with_and_without(
    precision: str, fused: bool, server: SmallServer
) -> None:
    plain, watched = Loop(precision, fused), Loop(precision, fused)
    plain.run()
    with watched.watch(server.url) as scope:
        watched.run()
    assert (scope.stats.errors, scope.stats.dropped) == (0, 0)
    assert (watched.losses, fingerprint(watched.learner)) == (plain.losses, fingerprint(plain.learner))


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
def test_what_is_skipped_is_recorded_where_fabric_says_nothing(fused: bool, server: SmallServer, shelf: Shelf) -> None:
    loop = Loop(fused=fused)
    with loop.watch(server.url):
        loop.run()
    assert {step for step, moved in enumerate(loop.moved) if not moved} == POISONED
    assert steps(shelf.records) == list(range(UPDATES))
    assert events(shelf.records, "skip").keys() == POISONED
    assert columns(shelf.records)["skipped"] == {step: float(step in POISONED) for step in range(UPDATES)}
    names = [parameter.name for parameter in layouts(shelf.records)[0].parameters]
    assert names == [name for name, _ in loop.learner.named_parameters()]
    assert {parameter.compute_format for parameter in layouts(shelf.records)[-1].parameters} == {"fp16"}
    clip = None if fused else {"kind": "norm", "limit": 0.5, "when": "unscaled", "calls": 1}
    assert all(window.get("clip") == clip for window in windows(shelf.records).values())


def test_the_modules_of_a_wrapped_model_are_heard_by_the_users_own_names(server: SmallServer, shelf: Shelf) -> None:
    loop = Loop("bf16-mixed")
    with loop.watch(server.url):
        loop.run()
    names = {module.name for module in layouts(shelf.records)[0].modules}
    assert {"chain", "chain.layers.0"} <= names
    assert not any("_forward_module" in name for name in names)
    assert '"precision": "bf16-mixed"' in shelf.hellos[0].config


def test_a_training_that_goes_on_is_a_new_segment_of_the_run_that_was_saved_with_it(
    server: SmallServer, shelf: Shelf, tmp_path: Path
) -> None:
    loop, later = Loop(), Shelf()
    with loop.watch(server.url) as first:
        loop.run(3)
        state = {"model": loop.model, "optimizer": loop.optimizer, "run": first.run_id}
        loop.fabric.save(tmp_path / "saved.ckpt", state)
    again = Loop()
    rest = again.fabric.load(tmp_path / "saved.ckpt", {"model": again.model, "optimizer": again.optimizer})
    with serving(later) as other, again.watch(other.url, run=rest["run"]) as second:
        again.run(3)
    assert second.run_id == first.run_id == later.hellos[0].run
    assert (shelf.hellos[0].resumed, later.hellos[0].resumed) == (False, True)
    assert steps(later.records) == [0, 1, 2]


def test_several_models_and_optimizers_are_one_training(server: SmallServer, shelf: Shelf) -> None:
    fabric = fabric_of("bf16-mixed")
    pairs = [Learner(), Learner()]
    models, optimizers = zip(
        *(fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1)) for model in pairs), strict=True
    )
    with watch(fabric, models, optimizers, url=server.url):
        for _ in range(3):
            fabric.backward(sum(model(torch.ones(2, 8)) for model in models))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    assert steps(shelf.records) == [0, 1, 2]
    assert [optimizer.name for optimizer in shelf.hellos[0].optimizers] == ["SGD", "SGD"]
