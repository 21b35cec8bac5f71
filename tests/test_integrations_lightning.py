"""Lightning's Trainer: one callback watches a fit, and counts what was applied where Lightning counts attempts."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Collection
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from scalescope.errors import SettingError
from scalescope.integrations.lightning import ScalescopeCallback
from scalescope.wire import Setup
from torch.utils.data import DataLoader

from tests.small_frameworks import POISONED, Batches, Learner, fingerprint, scaler_of
from tests.small_modules import tallies
from tests.small_server import Shelf, SmallServer, farewell, serving
from tests.small_training import columns, events, layouts, steps, windows

pytestmark = [
    pytest.mark.usefixtures("plain_environment"),
    # Lightning's own advice on workers of a data loader, and what torch advises Lightning.
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]

UPDATES = 8


class Lit(L.LightningModule):
    """Lightning's own idiom around the learner."""

    def __init__(self, poisoned: Collection[int] = POISONED, fused: bool = False, raises_at: int | None = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.learner = Learner(poisoned)
        self.losses: list[float] = []
        self.moved: list[bool] = []
        self.raises_at = raises_at
        self.fused = fused

    def training_step(self, batch: torch.Tensor, place: int) -> torch.Tensor:
        if place == self.raises_at:
            raise RuntimeError("a broken batch")
        loss: torch.Tensor = self.learner(batch)
        self.losses.append(loss.item())
        self.log("train_mean", loss, on_step=False, on_epoch=True)
        self.log("batch_place", float(place))
        return loss

    def validation_step(self, batch: torch.Tensor, _place: int) -> None:
        self.log("val_loss", self.learner(batch))

    def predict_step(self, batch: torch.Tensor, _place: int) -> torch.Tensor:
        loss: torch.Tensor = self.learner(batch)
        return loss

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        before = fingerprint(self.learner)
        super().optimizer_step(*args, **kwargs)
        self.moved.append(fingerprint(self.learner) != before)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2, fused=self.fused)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def trainer_of(precision: str, *callbacks: L.Callback, **settings: Any) -> L.Trainer:
    # On a CPU "16-mixed" becomes bf16; a plugin with a scaler of the CPU's own is taken as it is.
    given: dict[str, Any] = {"precision": precision}
    if precision == "16-mixed":
        given = {"plugins": MixedPrecision("16-mixed", "cpu", scaler_of())}
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    usual = {"max_epochs": 1, "log_every_n_steps": 2, "enable_checkpointing": False}
    return L.Trainer(callbacks=list(callbacks), **{**quiet, **usual, **given, **settings})


def loader(batches: int = UPDATES) -> DataLoader[torch.Tensor]:
    return DataLoader(Batches(batches * 4), batch_size=4)


def fit(precision: str, *callbacks: L.Callback, fused: bool = False, **settings: Any) -> tuple[Lit, L.Trainer]:
    torch.manual_seed(0)
    module = Lit(fused=fused)
    trainer = trainer_of(precision, *callbacks, **settings)
    trainer.fit(module, loader(), loader(2))
    return module, trainer


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed", "32-true"])
def test_losses_and_weights_are_the_same_to_the_bit_with_and_without(
    precision: str, fused: bool, server: SmallServer
) -> None:
    # It refuses to clip what a fused optimizer unscales by itself.
    clip = None if fused else 0.5
    settings = {"accumulate_grad_batches": 2, "gradient_clip_val": clip, "max_epochs": 2}
    plain, _ = fit(precision, fused=fused, **settings)
    callback = ScalescopeCallback(url=server.url)
    watched, _ = fit(precision, callback, fused=fused, **settings)
    assert (callback.scope.stats.errors, callback.scope.stats.dropped) == (0, 0)
    assert (watched.losses, fingerprint(watched)) == (plain.losses, fingerprint(plain))


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
def test_what_is_skipped_is_recorded_where_lightning_counts_it_as_a_step(
    fused: bool, server: SmallServer, shelf: Shelf
) -> None:
    module, trainer = fit("16-mixed", ScalescopeCallback(url=server.url), fused=fused)
    truth = {step for step, moved in enumerate(module.moved) if not moved}
    assert truth == POISONED
    # Theirs: every update is a step, and the learning rate goes on where nothing was learnt.
    assert trainer.global_step == UPDATES
    assert trainer.lr_scheduler_configs[0].scheduler.last_epoch == UPDATES
    assert columns(shelf.records)["skipped"] == {step: float(step in truth) for step in range(UPDATES)}
    assert events(shelf.records, "skip").keys() == truth
    assert {str(data["parameter"])[:22] for data in events(shelf.records, "skip").values()} == {
        "learner.chain.layers.2"
    }
    assert windows(shelf.records)[5]["scheduler"] == {"class": "ExponentialLR", "steps": 1, "follows": "attempted"}


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_accumulation_and_clipping_are_facts_of_the_windows(precision: str, server: SmallServer, shelf: Shelf) -> None:
    module, _ = fit(
        precision, ScalescopeCallback(url=server.url, every=1), accumulate_grad_batches=2, gradient_clip_val=0.5
    )
    assert steps(shelf.records) == list(range(UPDATES // 2))
    told = windows(shelf.records)
    clip = {"kind": "norm", "limit": 0.5, "when": "unscaled", "calls": 1}
    assert [(window["micro_batches"], window["clip"]) for window in told.values()] == [(2, clip)] * (UPDATES // 2)
    names = [parameter.name for parameter in layouts(shelf.records)[0].parameters]
    assert names == [name for name, _ in module.named_parameters()]


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_autocast_and_what_the_modules_inside_answer_are_recorded(
    precision: str, server: SmallServer, shelf: Shelf
) -> None:
    fit(precision, ScalescopeCallback(url=server.url))
    told = [json.loads(record.data) for record in shelf.records if isinstance(record, Setup)]
    assert told[-1]["autocast"] == {"cpu": "fp16" if precision == "16-mixed" else "bf16"}
    assert set(tallies(shelf.records)[0]) >= {"learner", "learner.chain.layers.0"}


def test_the_loss_of_every_update_and_what_the_module_logs_are_recorded(server: SmallServer, shelf: Shelf) -> None:
    module, _ = fit("bf16-mixed", ScalescopeCallback(url=server.url), accumulate_grad_batches=2, max_epochs=2)
    found = columns(shelf.records)
    # Not divided by the number of batches, and the last of each window.
    assert list(found["loss"].values()) == pytest.approx(module.losses[1::2])
    # Of two epochs of four updates each.
    assert list(found["val_loss"]) == list(found["train_mean"]) == [3, 7]
    assert list(found["train_mean"].values()) == pytest.approx(
        [sum(module.losses[:8]) / 8, sum(module.losses[8:]) / 8], rel=1e-5
    )
    assert list(found["batch_place"].values()) == [1.0, 3.0, 5.0, 7.0] * 2


def test_evaluations_between_and_before_are_no_updates(server: SmallServer, shelf: Shelf) -> None:
    callback = ScalescopeCallback(url=server.url, every=1)
    module, trainer = fit("16-mixed", callback, val_check_interval=2, num_sanity_val_steps=2)
    trainer.validate(module, loader(2), verbose=False)
    trainer.predict(module, loader(2))
    assert steps(shelf.records) == list(range(UPDATES))
    assert farewell(shelf.records).reason == "finished"
    assert callback.scope.stats.errors == 0


def test_the_run_is_named_and_described_by_the_module(server: SmallServer, shelf: Shelf) -> None:
    fit("16-mixed", ScalescopeCallback(url=server.url, project="speech"), gradient_clip_val=0.5)
    hello = shelf.hellos[0]
    config = json.loads(hello.config)
    assert (hello.project, hello.name, config["fused"]) == ("speech", "Lit", False)
    assert config["trainer"]["gradient_clip_val"] == 0.5
    assert config["trainer"]["precision"] == "16-mixed"
    assert hello.environment["scheduler"] == "ExponentialLR"
    assert hello.scaler is not None
    assert hello.scaler.scale == 1024.0


def test_a_fit_that_goes_on_from_a_checkpoint_is_a_new_segment_of_its_run(
    server: SmallServer, shelf: Shelf, tmp_path: Path
) -> None:
    first = ScalescopeCallback(url=server.url)
    _, trainer = fit("16-mixed", first)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    later = Shelf()
    with serving(later) as other:
        second = ScalescopeCallback(url=other.url)
        again = trainer_of("16-mixed", second, max_epochs=2)
        again.fit(Lit(), loader(), loader(2), ckpt_path=tmp_path / "one.ckpt", weights_only=False)
    assert second.scope.run_id == first.scope.run_id == later.hellos[0].run
    assert (shelf.hellos[0].resumed, later.hellos[0].resumed) == (False, True)
    assert steps(later.records) == list(range(UPDATES))


def test_a_fit_that_does_not_go_on_from_a_checkpoint_is_a_run_of_its_own(
    server: SmallServer, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALESCOPE_URL", server.url)
    _, trainer = fit("bf16-mixed", ScalescopeCallback())
    later = Shelf()
    with serving(later) as other:
        monkeypatch.setenv("SCALESCOPE_URL", other.url)
        trainer.fit_loop.max_epochs = 2
        trainer.fit(Lit(), loader())
    assert later.hellos[0].run != shelf.hellos[0].run
    assert not later.hellos[0].resumed


def test_the_exception_that_ends_a_fit_is_recorded_as_a_crash(server: SmallServer, shelf: Shelf) -> None:
    with pytest.raises(RuntimeError, match="a broken batch"):
        trainer_of("bf16-mixed", ScalescopeCallback(url=server.url)).fit(Lit(raises_at=3), loader())
    assert steps(shelf.records) == [0, 1, 2]
    assert farewell(shelf.records).reason == "crashed"
    assert "RuntimeError: a broken batch" in farewell(shelf.records).detail


class Adversaries(L.LightningModule):
    """Two optimizers that take turns, stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.one, self.other = Learner({1}), Learner()

    def training_step(self, batch: torch.Tensor, place: int) -> None:
        for learner, optimizer in zip((self.one, self.other), self.optimizers(), strict=True):
            loss = learner(batch)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(learner.parameters(), lr=0.1) for learner in (self.one, self.other)]


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_optimizers_stepped_by_hand_in_turns_are_told_apart(precision: str, server: SmallServer, shelf: Shelf) -> None:
    callback = ScalescopeCallback(url=server.url)
    trainer_of(precision, callback).fit(Adversaries(), loader(3))
    assert callback.scope.stats.errors == 0
    # Each of them unscales, steps and updates by itself: six updates, the third of which is the second of the first.
    assert steps(shelf.records) == list(range(6))
    skipped = {2} if precision == "16-mixed" else set()
    assert columns(shelf.records)["skipped"] == {step: float(step in skipped) for step in range(6)}
    assert [optimizer.name for optimizer in shelf.hellos[0].optimizers] == ["SGD", "SGD"]


class Choosy(Lit):
    """Leaves out every second batch, as Lightning allows."""

    def training_step(self, batch: torch.Tensor, place: int) -> torch.Tensor | None:  # type: ignore[override]
        return super().training_step(batch, place) if place % 2 == 0 else None


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_a_batch_that_is_left_out_is_no_update_of_the_scaler(server: SmallServer, shelf: Shelf) -> None:
    callback = ScalescopeCallback(url=server.url)
    trainer = trainer_of("16-mixed", callback)
    trainer.fit(Choosy(poisoned=()), loader())
    assert trainer.global_step == UPDATES
    assert steps(shelf.records) == list(range(UPDATES // 2))
    assert callback.scope.stats.errors == 0


def test_a_training_that_cannot_be_watched_goes_on(
    server: SmallServer, shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    class Strange(Lit):
        secretive = False

        @property
        def hparams(self) -> Any:
            if self.secretive:
                raise RuntimeError("no hyperparameters")
            return super().hparams

        def on_train_start(self) -> None:
            self.secretive = False

        def on_fit_start(self) -> None:
            self.secretive = True

    trainer = trainer_of("bf16-mixed", ScalescopeCallback(url=server.url))
    trainer.fit(Strange(), loader())
    assert trainer.global_step == UPDATES
    assert not shelf.hellos
    assert "no hyperparameters" in caplog.text


@pytest.mark.parametrize("wrong", [{"project": ""}, {"every": 0}, {"url": "nowhere"}, {"run": "a b"}, {"config": 7}])
def test_a_bad_option_is_refused_before_anything_trains(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        ScalescopeCallback(**wrong)


def test_a_name_that_is_no_option_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        ScalescopeCallback(colour="blue")  # type: ignore[call-arg]


def test_a_callback_that_watches_copies_and_pickles_to_one_that_is_ready_to_watch(
    server: SmallServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALESCOPE_URL", server.url)
    callback = ScalescopeCallback()
    fit("bf16-mixed", callback)
    for twin in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert twin.scope.run_id == ""
        with serving(Shelf()) as other:
            monkeypatch.setenv("SCALESCOPE_URL", other.url)
            fit("bf16-mixed", twin)
        assert twin.scope.run_id not in ("", callback.scope.run_id)
