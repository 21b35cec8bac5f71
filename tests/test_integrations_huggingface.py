"""The Trainer of transformers: one callback watches it, right where its learning rate goes on at a skipped update."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from scalescope.errors import SettingError
from scalescope.integrations.huggingface import ScalescopeCallback
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

from tests.programs import Programs
from tests.small_frameworks import POISONED, Batches, Learner, fingerprint, scaler_of
from tests.small_server import Shelf, SmallServer, farewell, serving
from tests.small_training import columns, events, layouts, steps, windows

pytestmark = pytest.mark.usefixtures("plain_environment", "anew")

UPDATES = 8


@pytest.fixture
def anew() -> Iterator[None]:
    """Accelerate, which the Trainer is built on, keeps one state for the whole process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


class Inputs(Dataset[dict[str, torch.Tensor]]):
    """Rows as the Trainer's collator takes them."""

    def __init__(self, count: int) -> None:
        self.rows = Batches(count)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {"batch": self.rows[place], "labels": self.rows[place]}


class Model(nn.Module):
    """The learner as the Trainer takes a model. It makes its target itself."""

    main_input_name = "batch"

    def __init__(self) -> None:
        super().__init__()
        self.learner = Learner(POISONED)

    def forward(self, batch: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.learner(batch)}


def trainer_of(folder: Path, *callbacks: Any, precision: str = "fp16", **settings: Any) -> Trainer:
    torch.manual_seed(0)
    usual: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "max_steps": UPDATES,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "logging_steps": 2,
        "save_strategy": "no",
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
    }
    arguments = TrainingArguments(**{**usual, **settings})
    trainer = Trainer(Model(), arguments, train_dataset=Inputs(256), eval_dataset=Inputs(8), callbacks=list(callbacks))
    if precision == "fp16":
        # On a CPU the Trainer takes fp16=True and trains in fp32 without a scaler: what it would set up on a GPU is
        # put in here.
        trainer.accelerator.scaler, trainer.accelerator.native_amp = scaler_of(), True
    return trainer


def model_of(trainer: Trainer) -> nn.Module:
    assert isinstance(trainer.model, nn.Module)
    return trainer.model


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
def test_losses_and_weights_are_the_same_to_the_bit_with_and_without(
    precision: str, optim: str, server: SmallServer, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"gradient_accumulation_steps": 2, "optim": optim, "logging_steps": 1}
    plain = trainer_of(tmp_path, precision=precision, **settings)
    plain.train()
    AcceleratorState._reset_state(reset_partial_state=True)
    callback = ScalescopeCallback(url=server.url)
    watched = trainer_of(tmp_path, callback, precision=precision, **settings)
    watched.train()
    assert (callback.scope.stats.errors, callback.scope.stats.dropped) == (0, 0)
    losses = [[row.get("loss") for row in trainer.state.log_history] for trainer in (plain, watched)]
    assert losses[0] == losses[1]
    assert fingerprint(model_of(watched)) == fingerprint(model_of(plain))


def test_a_skip_in_the_trainers_own_fused_default_is_recorded_where_its_learning_rate_goes_on(
    server: SmallServer, shelf: Shelf, tmp_path: Path
) -> None:
    trainer = trainer_of(tmp_path, ScalescopeCallback(url=server.url), logging_steps=1)
    trainer.train()
    assert trainer.args.optim == "adamw_torch_fused"
    # Theirs: eight steps, none skipped, and a rate for each.
    assert not trainer.accelerator.optimizer_step_was_skipped
    rates = [row["learning_rate"] for row in trainer.state.log_history if "loss" in row]
    assert len(set(rates)) == trainer.state.global_step == UPDATES
    assert columns(shelf.records)["learning_rate"] == pytest.approx(dict(enumerate(rates)))
    assert events(shelf.records, "skip").keys() == POISONED
    assert columns(shelf.records)["skipped"] == {step: float(step in POISONED) for step in range(UPDATES)}
    assert windows(shelf.records)[5]["scheduler"] == {"class": "LambdaLR", "steps": 1, "follows": "attempted"}


def test_a_skip_that_the_trainer_knows_of_keeps_its_scheduler_at_rest(
    server: SmallServer, shelf: Shelf, tmp_path: Path
) -> None:
    trainer = trainer_of(tmp_path, ScalescopeCallback(url=server.url), optim="adamw_torch")
    trainer.train()
    assert events(shelf.records, "skip").keys() == POISONED
    assert windows(shelf.records)[5]["scheduler"] == {"class": "LambdaLR", "steps": 0, "follows": "applied"}


def test_accumulation_and_clipping_are_facts_of_the_windows(server: SmallServer, shelf: Shelf, tmp_path: Path) -> None:
    callback = ScalescopeCallback(url=server.url)
    trainer = trainer_of(tmp_path, callback, gradient_accumulation_steps=2, max_grad_norm=0.5)
    trainer.train()
    assert steps(shelf.records) == list(range(UPDATES))
    clip = {"kind": "norm", "limit": 0.5, "when": "unscaled", "calls": 1}
    told = [(window["micro_batches"], window["clip"]) for window in windows(shelf.records).values()]
    assert told == [(2, clip)] * UPDATES
    names = [parameter.name for parameter in layouts(shelf.records)[0].parameters]
    assert names == [name for name, _ in model_of(trainer).named_parameters()]


def test_what_the_trainer_logs_and_counts_is_recorded(server: SmallServer, shelf: Shelf, tmp_path: Path) -> None:
    callback = ScalescopeCallback(url=server.url)
    trainer = trainer_of(
        tmp_path,
        callback,
        include_num_input_tokens_seen="all",
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=4,
    )
    trainer.train()
    found = columns(shelf.records)
    logged = {row["step"] - 1: row["loss"] for row in trainer.state.log_history if "loss" in row}
    assert found["loss"] == pytest.approx(logged)
    assert list(logged) == [1, 3, 5, 7]
    evaluated = {row["step"] - 1: row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row}
    assert found["eval_loss"] == pytest.approx(evaluated)
    assert list(evaluated) == [3, 7]
    # Two batches of four rows of eight.
    assert found["tokens"] == dict.fromkeys(range(UPDATES), 64.0)
    assert not any(name.endswith(("_runtime", "_per_second")) for name in found)
    assert callback.scope.stats.refused == 0
    # An evaluation in between makes no update, and one afterwards no record.
    trainer.evaluate()
    assert steps(shelf.records) == list(range(UPDATES))
    assert farewell(shelf.records).reason == "finished"


def test_the_run_is_named_and_described_by_the_arguments_without_their_tokens(
    server: SmallServer, shelf: Shelf, tmp_path: Path
) -> None:
    callback = ScalescopeCallback(url=server.url, project="speech", tags=["a"])
    trainer_of(tmp_path, callback, run_name="first", hub_token="hf_secret", dataloader_pin_memory=False).train()
    hello = shelf.hellos[0]
    config = json.loads(hello.config)
    assert (hello.project, hello.name, hello.tags) == ("speech", "first", ["a"])
    assert (config["max_steps"], config["optim"], config["learning_rate"]) == (UPDATES, "adamw_torch_fused", 1e-2)
    assert "hf_secret" not in hello.config
    # What is as it is by default does not hide what is not.
    assert config["dataloader_pin_memory"] is False
    assert "dataloader_drop_last" not in config
    assert hello.scaler is not None
    assert hello.scaler.scale == 1024.0


@pytest.mark.parametrize("restore", [False, True])
def test_a_training_that_goes_on_from_a_checkpoint_is_a_new_segment_of_its_run(
    restore: bool, server: SmallServer, shelf: Shelf, tmp_path: Path
) -> None:
    first = ScalescopeCallback(url=server.url)
    trainer_of(tmp_path, first, max_steps=4, save_strategy="steps", save_steps=4).train()
    AcceleratorState._reset_state(reset_partial_state=True)
    later = Shelf()
    with serving(later) as other:
        second = ScalescopeCallback(url=other.url, name="second")
        trainer_of(tmp_path, second, restore_callback_states_from_checkpoint=restore).train(resume_from_checkpoint=True)
    assert second.scope.run_id == first.scope.run_id == later.hellos[0].run
    assert (shelf.hellos[0].resumed, later.hellos[0].resumed) == (False, True)
    # The callback that was given, not one made anew from what was saved.
    assert later.hellos[0].name == "second"
    assert steps(later.records) == [0, 1, 2, 3]


def test_a_training_that_goes_on_from_a_checkpoint_made_without_is_a_run_of_its_own_and_saves_again(
    server: SmallServer, shelf: Shelf, tmp_path: Path
) -> None:
    trainer_of(tmp_path, max_steps=4, save_strategy="steps", save_steps=4).train()
    AcceleratorState._reset_state(reset_partial_state=True)
    callback = ScalescopeCallback(url=server.url)
    again = trainer_of(tmp_path, callback, save_strategy="steps", save_steps=4)
    again.train(resume_from_checkpoint=True)
    assert not shelf.hellos[0].resumed
    saved = json.loads((tmp_path / f"checkpoint-{UPDATES}" / "trainer_state.json").read_text())
    assert callback.scope.run_id in json.dumps(saved["stateful_callbacks"])


def test_the_run_that_the_environment_names_wins_over_the_checkpoints(
    server: SmallServer, shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALESCOPE_RUN", "operators-own")
    state = TrainerState(global_step=4)
    state.stateful_callbacks = {"scalescope": {"args": {}, "attributes": {"run": "the-checkpoints"}}}  # type: ignore[assignment]
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    callback = ScalescopeCallback(url=server.url)
    arguments = TrainingArguments(str(tmp_path), use_cpu=True)
    given = {"model": model, "optimizer": optimizer, "lr_scheduler": None}
    callback.on_train_begin(arguments, state, TrainerControl(), **given)
    callback.on_train_end(arguments, state, TrainerControl())
    assert shelf.hellos[0].run == "operators-own"


BROKEN = """
import sys
from pathlib import Path
from scalescope.integrations.huggingface import ScalescopeCallback
from tests.test_integrations_huggingface import trainer_of

def fail(learner, *_):
    if learner.passes == 3:
        raise RuntimeError("a broken batch")

trainer = trainer_of(Path(sys.argv[1]), ScalescopeCallback(), precision="fp32")
trainer.model.learner.register_forward_pre_hook(fail)
trainer.train()
"""


def test_an_exception_that_ends_the_process_is_recorded_as_a_crash(
    programs: Programs, server: SmallServer, shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALESCOPE_URL", server.url)
    assert programs.run(BROKEN, str(tmp_path)).returncode == 1
    assert farewell(shelf.records).reason == "crashed"
    assert "RuntimeError: a broken batch" in farewell(shelf.records).detail
    assert steps(shelf.records) == [0, 1, 2]


def test_a_training_that_cannot_be_watched_goes_on(
    server: SmallServer, shelf: Shelf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Withheld(ScalescopeCallback):
        """A Trainer of another version, which hands over less."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
            super().on_train_begin(args, state, control)

    trainer = trainer_of(tmp_path, Withheld(url=server.url), precision="bf16")
    trainer.train()
    assert trainer.state.global_step == UPDATES
    assert not shelf.hellos
    assert "KeyError" in caplog.text


@pytest.mark.parametrize("wrong", [{"project": ""}, {"every": 0}, {"tags": "one"}])
def test_a_bad_option_is_refused_before_anything_trains(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        ScalescopeCallback(**wrong)
