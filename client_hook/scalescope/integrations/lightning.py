"""Lightning: one callback for its Trainer, and one line for Fabric.

::

    trainer = Trainer(..., callbacks=[ScalescopeCallback()])

    model, optimizer = fabric.setup(model, optimizer)
    scope = watch(fabric, model, optimizer)

``lightning`` and ``pytorch_lightning`` are two packages with classes of their own. The callback is one of those that
were imported before this module, of both if both were; where none was, of the first that is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import nn

from scalescope.integrations.attendant import Attendant, missing
from scalescope.integrations.options import Known, Options, watch_known
from scalescope.scope import Scope

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callback_class() -> type:
    installed = [name for name in _PACKAGES if find_spec(name.partition(".")[0])]
    if not installed:
        raise missing("lightning", "lightning")
    imported = [name for name in installed if name in sys.modules] or installed[:1]
    classes = tuple(import_module(name).Callback for name in imported)
    return classes[0] if len(classes) == 1 else type("Callback", classes, {})


if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    Callback = _callback_class()


class ScalescopeCallback(Callback):
    """Watches what a Trainer fits, from ``on_train_start`` to ``on_train_end``, or to the exception that ends it.

    Takes the options of :func:`scalescope.watch`: ``project``, ``name``, ``url``, ``every`` and so on. The run is named
    after the module's class; its config holds the module's hyperparameters and the Trainer's settings. The loss that
    ``training_step`` returns is recorded for every update, what it logs every ``log_every_n_steps`` batches, metrics of
    an epoch and of a validation once each. A checkpoint says which run it belongs to, so that a training which goes on
    from it (``ckpt_path``) is a new segment of that run.

    Raises:
        TypeError, SettingError: for options that cannot be used; later nothing is raised.
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        self._attendant = Attendant(options)
        self._run: str | None = None
        self._metrics = _Metrics()

    @property
    def scope(self) -> Scope:
        """The scope of the training that goes on, or went on last; one that is off before the first."""
        return self._attendant.scope

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._metrics = _Metrics()
        self._attendant.guard(self._begin, trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Only now are those of the epoch before known without asking the other ranks.
        self._attendant.guard(self._log_news, trainer)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        self._attendant.guard(self._log_batch, trainer, pl_module, outputs, batch_idx)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._attendant.guard(self._log_news, trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._attendant.guard(self._log_news, trainer)
        self._attendant.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._attendant.end(exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        # Of a fit that was broken off otherwise; a test or a prediction in the middle of a fit is not its end.
        if stage == "fit":
            self._attendant.end()

    def state_dict(self) -> dict[str, Any]:
        return {"run": self.scope.run_id}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._run = state_dict.get("run") or None

    def _begin(self, trainer: Trainer, module: LightningModule) -> None:
        run, self._run = self._run, None
        self._attendant.begin(_known(trainer, module, run))

    def _log_batch(self, trainer: Trainer, module: LightningModule, outputs: object, place: int) -> None:
        self.scope.log(**self._metrics.of_batch(trainer, module, outputs, place))

    def _log_news(self, trainer: Trainer) -> None:
        self.scope.log(**self._metrics.news(trainer))


def watch(
    fabric: Fabric,
    model: nn.Module | Sequence[nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    scheduler: object = None,
    **options: Unpack[Options],
) -> Scope:
    """Watch a training from here on: what ``fabric.setup`` answered, with the scaler of its precision.

    Args:
        fabric: its precision's scaler is the one watched.
        model: what was set up, one or several.
        optimizer: likewise.
        scheduler: the learning-rate scheduler whose steps are counted.
        options: those of :func:`scalescope.watch`. Where a training goes on, ``run`` is the ``scope.run_id`` that was
            saved with it.

    Returns:
        The scope, as of :func:`scalescope.watch`.

    Raises:
        SettingError: for an argument that cannot be used. Nothing is raised later.
    """
    known = Known(
        _forward_module(model) if isinstance(model, nn.Module) else [_forward_module(each) for each in model],
        [_own(each) for each in optimizer] if isinstance(optimizer, Sequence) else _own(optimizer),
        _scaler(fabric.strategy.precision),
        scheduler,
        config={**_placement(fabric), "precision": fabric.strategy.precision.precision},
    )
    return watch_known(known, options)


class _Metrics:
    """What a Trainer knows of losses and metrics; each is told once."""

    def __init__(self) -> None:
        self._told: dict[str, object] = {}
        self._returns_loss = False

    def of_batch(self, trainer: Trainer, module: LightningModule, outputs: object, place: int) -> dict[str, object]:
        """The loss of a batch, and every ``log_every_n_steps`` what was logged."""
        every: int = getattr(trainer, "log_every_n_steps", 0)
        found = self.news(trainer) if every and (place + 1) % every == 0 else {}
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor):
            self._returns_loss = True
            # What the backward pass began with: where the Trainer accumulates, it is divided before.
            parts = trainer.accumulate_grad_batches if module.automatic_optimization else 1
            found["loss"] = loss.detach() * parts if parts > 1 else loss
        return found

    def news(self, trainer: Trainer) -> dict[str, object]:
        """What has been logged since this was asked for last. Tokens of some batches are no count of tokens."""
        metrics: dict[str, object] = dict(trainer.callback_metrics)
        found = {name: value for name, value in metrics.items() if self._told.get(name) is not value}
        self._told = metrics
        found.pop("tokens", None)
        if self._returns_loss:
            found.pop("loss", None)
        return found


def _known(trainer: Trainer, module: LightningModule, run: str | None) -> Known:
    schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
    return Known(
        module if trainer.model is None else trainer.model,
        [_own(optimizer) for optimizer in trainer.optimizers],
        _scaler(trainer.precision_plugin),
        schedulers[0] if schedulers else None,
        name=type(module).__name__,
        config={**dict(module.hparams), "trainer": _settings(trainer)},
        run=run,
    )


def _settings(trainer: Trainer) -> dict[str, object]:
    names = ("precision", "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm", "max_steps")
    return {**_placement(trainer), **{name: getattr(trainer, name) for name in (*names, "max_epochs")}}


def _placement(runner: Trainer | Fabric) -> dict[str, object]:
    return {"strategy": type(runner.strategy).__name__, "world_size": runner.world_size}


def _scaler(precision: object) -> torch.amp.GradScaler | None:
    scaler: torch.amp.GradScaler | None = getattr(precision, "scaler", None)
    return scaler


def _own(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer inside of Lightning's or Fabric's wrapper, which only looks like one."""
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else optimizer


def _forward_module(model: nn.Module) -> nn.Module:
    """What Fabric's wrapper calls: the model, in its data-parallel wrapper where there is one."""
    inner = getattr(model, "_forward_module", None)
    return inner if isinstance(inner, nn.Module) else model
