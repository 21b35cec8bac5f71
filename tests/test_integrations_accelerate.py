"""Accelerate: one line watches what was prepared, and tells the truth where its own flag of a skip does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from scalescope.errors import SettingError
from scalescope.integrations.accelerate import watch
from scalescope.integrations.options import Options
from scalescope.scope import Scope

from tests.small_frameworks import POISONED, Batches, Learner, fingerprint, scaler_of
from tests.small_server import Shelf, SmallServer, serving
from tests.small_training import columns, events, layouts, steps, windows

pytestmark = pytest.mark.usefixtures("plain_environment", "anew")

UPDATES = 8


@pytest.fixture
def anew() -> Iterator[None]:
    """Accelerate keeps one state for the whole process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def accelerator_of(precision: str, accumulate: int = 1) -> Accelerator:
    accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=accumulate)
    if precision == "fp16":
        # On a CPU it takes "fp16" and trains in fp32 without a scaler: what it would set up on a GPU is put in here.
        accelerator.scaler, accelerator.native_amp = scaler_of(), True
    return accelerator


@dataclass
class Loop:
    """The loop of Accelerate's documentation; what it answers after each update is kept."""

    precision: str = "fp16"
    fused: bool = False
    accumulate: int = 1
    losses: list[float] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)
    moved: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.accelerator = accelerator_of(self.precision, self.accumulate)
        self.learner = Learner(POISONED)
        optimizer = torch.optim.AdamW(self.learner.parameters(), lr=1e-2, fused=self.fused)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        data = torch.utils.data.DataLoader(Batches(), batch_size=4)
        self.model, self.optimizer, self.data, self.scheduler = self.accelerator.prepare(
            self.learner, optimizer, data, scheduler
        )

    def watch(self, url: str, *, checkpoint: Path | None = None) -> Scope:
        parts = self.model, self.optimizer, self.scheduler
        return watch(self.accelerator, *parts, checkpoint=checkpoint, url=url, project="speech")

    def run(self, updates: int = UPDATES) -> None:
        for batch, _ in zip(self.data, range(updates * self.accumulate), strict=False):
            with self.accelerator.accumulate(self.model):
                loss = self.model(batch)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 0.5)
                before = fingerprint(self.learner)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
            self.losses.append(loss.item())
            if self.accelerator.sync_gradients:
                self.skipped.append(self.accelerator.optimizer_step_was_skipped)
                self.moved.append(fingerprint(self.learner) != before)


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
@pytest.mark.parametrize("precision", ["fp16", "bf16", "no"])
def test_losses_and_weights_are_the_same_to_the_bit_with_and_without(
    precision: str, fused: bool, server: SmallServer
) -> None:
    plain = Loop(precision, fused, accumulate=2)
    plain.run()
    AcceleratorState._reset_state(reset_partial_state=True)
    watched = Loop(precision, fused, accumulate=2)
    with watched.watch(server.url) as scope:
        watched.run()
    assert (scope.stats.errors, scope.stats.dropped) == (0, 0)
    assert (watched.losses, fingerprint(watched.learner)) == (plain.losses, fingerprint(plain.learner))


def test_a_skip_inside_of_a_fused_optimizer_is_recorded_where_accelerate_reports_none(
    server: SmallServer, shelf: Shelf
) -> None:
    loop = Loop(fused=True)
    with loop.watch(server.url):
        loop.run()
    truth = {step for step, moved in enumerate(loop.moved) if not moved}
    assert truth == POISONED
    # Theirs: the step was called, so it was not skipped; and so the learning rate goes on where nothing was learnt.
    assert not any(loop.skipped)
    assert events(shelf.records, "skip").keys() == truth
    assert {str(data["parameter"])[:14] for data in events(shelf.records, "skip").values()} == {"chain.layers.2"}
    assert columns(shelf.records)["skipped"] == {step: float(step in truth) for step in range(UPDATES)}
    assert columns(shelf.records)["scheduler_steps"][UPDATES - 1] == UPDATES
    assert windows(shelf.records)[5]["scheduler"] == {"class": "ExponentialLR", "steps": 1, "follows": "attempted"}
    assert windows(shelf.records)[5]["skipped_in_kernel"] is True


def test_a_skip_that_accelerate_reports_is_recorded_and_the_scheduler_waits(server: SmallServer, shelf: Shelf) -> None:
    loop = Loop()
    with loop.watch(server.url):
        loop.run()
    assert {step for step, skipped in enumerate(loop.skipped) if skipped} == POISONED
    assert events(shelf.records, "skip").keys() == POISONED
    assert columns(shelf.records)["scheduler_steps"][UPDATES - 1] == UPDATES - len(POISONED)
    assert windows(shelf.records)[5]["scheduler"] == {"class": "ExponentialLR", "steps": 0, "follows": "applied"}


def test_accumulation_clipping_and_names_are_those_of_the_users_own_model(server: SmallServer, shelf: Shelf) -> None:
    loop = Loop(accumulate=2)
    with loop.watch(server.url):
        loop.run()
    assert steps(shelf.records) == list(range(UPDATES))
    # Two passes of the eight windows are poisoned: the third and the sixth.
    assert columns(shelf.records)["skipped"] == {step: float(step in {1, 2}) for step in range(UPDATES)}
    told = windows(shelf.records)
    assert all(window["micro_batches"] == 2 for window in told.values())
    clip = {"kind": "norm", "limit": 0.5, "when": "unscaled", "calls": 1}
    assert all(window["clip"] == clip for window in told.values())
    names = [parameter.name for parameter in layouts(shelf.records)[0].parameters]
    assert names == [name for name, _ in loop.learner.named_parameters()]
    assert shelf.hellos[0].project == "speech"
    assert '"gradient_accumulation_steps": 2' in shelf.hellos[0].config
    assert shelf.hellos[0].scaler is not None
    assert shelf.hellos[0].environment["scheduler"] == "ExponentialLR"


def test_several_models_and_optimizers_are_one_training(server: SmallServer, shelf: Shelf) -> None:
    accelerator = accelerator_of("bf16")
    models = [Learner(), Learner()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    models[0], models[1], optimizers[0], optimizers[1] = accelerator.prepare(*models, *optimizers)
    with watch(accelerator, models, optimizers, url=server.url):
        for _ in range(3):
            accelerator.backward(models[0](torch.ones(2, 8)) + models[1](torch.ones(2, 8)))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    assert steps(shelf.records) == [0, 1, 2]
    assert [optimizer.name for optimizer in shelf.hellos[0].optimizers] == ["SGD", "SGD"]


def test_a_training_that_goes_on_from_a_checkpoint_is_a_new_segment_of_its_run(
    server: SmallServer, shelf: Shelf, tmp_path: Path
) -> None:
    loop, later = Loop(), Shelf()
    with loop.watch(server.url) as first:
        loop.run(4)
        loop.accelerator.save_state(str(tmp_path / "saved"))
    AcceleratorState._reset_state(reset_partial_state=True)
    again = Loop()
    again.accelerator.load_state(str(tmp_path / "saved"))
    with serving(later) as other, again.watch(other.url, checkpoint=tmp_path / "saved") as second:
        again.run(2)
    assert second.run_id == first.run_id == later.hellos[0].run
    assert (shelf.hellos[0].resumed, later.hellos[0].resumed) == (False, True)
    assert steps(later.records) == [0, 1]


def test_a_checkpoint_of_no_run_begins_a_new_one_with_a_line_that_says_so(
    server: SmallServer, shelf: Shelf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop()
    loop.accelerator.save_state(str(tmp_path / "saved"))
    with loop.watch(server.url, checkpoint=tmp_path / "saved") as scope:
        loop.run(1)
    assert shelf.hellos[0].run == scope.run_id
    assert not shelf.hellos[0].resumed
    assert "does not say which run it belongs to" in caplog.text


def test_a_checkpoint_that_cannot_be_written_beside_is_saved_all_the_same(
    server: SmallServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop()
    (tmp_path / "saved" / "scalescope-run.txt").mkdir(parents=True)
    with loop.watch(server.url):
        loop.accelerator.save_state(str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "model.safetensors").exists()
    assert "does not say which run it belongs to" in caplog.text


def test_a_bad_argument_is_refused_at_once() -> None:
    loop = Loop()
    options: Options = {"project": ""}
    with pytest.raises(SettingError, match="project"):
        watch(loop.accelerator, loop.model, loop.optimizer, **options)
