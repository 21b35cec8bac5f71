"""The Trainer of Hugging Face's transformers: one callback.

::

    trainer = Trainer(..., callbacks=[ScalescopeCallback()])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from numbers import Real
from typing import Any, Unpack

import torch

from scalescope.integrations.attendant import Attendant, missing
from scalescope.integrations.options import Known, Options
from scalescope.scope import Scope

try:
    from accelerate.optimizer import AcceleratedOptimizer
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise missing("huggingface", "transformers[torch]") from error

# Known better by the hook, for every update; or of the whole call of train(), not of an update.
_LEFT_OUT = frozenset({"epoch", "grad_norm", "learning_rate", "num_input_tokens_seen", "total_flos", "train_loss"})
_SPEEDS = ("_runtime", "_per_second")
_DECISIVE = frozenset(
    {
        *("learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "optim", "max_grad_norm"),
        *("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps"),
        *("bf16", "fp16", "torch_compile", "seed"),
    }
)
# Where a checkpoint's trainer_state.json says which run it belongs to.
_KEPT = "scalescope"


class ScalescopeCallback(TrainerCallback):
    """Watches what a Trainer trains, from ``on_train_begin`` to ``on_train_end``.

    Takes the options of :func:`scalescope.watch`: ``project``, ``name``, ``url``, ``every`` and so on. The run's name
    is ``TrainingArguments.run_name``, else the model's class; its config the arguments that decide on a training, those
    that are not as by default, and the model's own. Losses are recorded as often as the Trainer logs them
    (``logging_steps``), metrics of evaluations too; tokens where it counts them (``include_num_input_tokens_seen``).

    Raises:
        TypeError, SettingError: for options that cannot be used; later nothing is raised.
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        self._attendant = Attendant(options)
        self._tokens = 0

    @property
    def scope(self) -> Scope:
        """The scope of the training that goes on, or went on last; one that is off before the first."""
        return self._attendant.scope

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._attendant.guard(self._begin, args, state, kwargs)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        tokens = state.num_input_tokens_seen - self._tokens
        if tokens:
            self._tokens = state.num_input_tokens_seen
            self.scope.log(tokens=tokens)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, object] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs:
            self._attendant.guard(self._log, logs)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._attendant.end()

    def _begin(self, args: TrainingArguments, state: TrainerState, given: Mapping[str, Any]) -> None:
        self._tokens = state.num_input_tokens_seen
        # Annotated as what it is made from: it holds the state of each by name.
        kept: Any = state.stateful_callbacks
        run = kept.get(_KEPT, {}).get("attributes", {}).get("run") if state.global_step else None
        self._attendant.begin(_known(args, given, run))
        # Among the states of callbacks, but not as one: the Trainer makes such a callback anew when it resumes, and
        # fails to save where the checkpoint that it resumed from had none.
        kept[_KEPT] = {"args": {}, "attributes": {"run": self.scope.run_id}}

    def _log(self, logs: Mapping[str, object]) -> None:
        self.scope.log(
            **{
                name: value
                for name, value in logs.items()
                if isinstance(value, Real | torch.Tensor) and name not in _LEFT_OUT and not name.endswith(_SPEEDS)
            }
        )


def _known(args: TrainingArguments, given: Mapping[str, Any], run: str | None) -> Known:
    model, optimizer, scaler = given["model"], given["optimizer"], None
    while isinstance(optimizer, AcceleratedOptimizer):
        scaler, optimizer = optimizer.scaler, optimizer.optimizer
    config = _settings(args)
    own: Any = getattr(model, "config", None)
    if hasattr(own, "to_diff_dict"):
        config["model"] = own.to_diff_dict()
    return Known(model, optimizer, scaler, given["lr_scheduler"], args.run_name or type(model).__name__, config, run)


def _settings(args: TrainingArguments) -> dict[str, object]:
    """What decides on a training, and what is otherwise than it is by default; nobody's token."""
    usual = {field.name: field.default for field in fields(args)}
    told: dict[str, object] = args.to_dict()  # type: ignore[no-untyped-call]
    return {
        name: value
        for name, value in told.items()
        if not name.endswith("_token") and (name in _DECISIVE or value not in (usual.get(name), None, [], {}))
    }
