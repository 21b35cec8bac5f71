"""Hugging Face's Accelerate: one line after ``accelerator.prepare``.

::

    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    scope = watch(accelerator, model, optimizer, scheduler)
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Unpack

import torch
from torch import nn

from scalescope.integrations.attendant import missing
from scalescope.integrations.options import Known, Options, watch_known
from scalescope.scope import Scope

try:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.scheduler import AcceleratedScheduler
except ImportError as error:
    raise missing("accelerate", "accelerate") from error

# Where a checkpoint of Accelerator.save_state says which run it belongs to.
_KEPT = "scalescope-run.txt"

logger = logging.getLogger("scalescope")


def watch(
    accelerator: Accelerator,
    model: nn.Module | Sequence[nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    scheduler: object = None,
    *,
    checkpoint: str | PathLike[str] | None = None,
    **options: Unpack[Options],
) -> Scope:
    """Watch a training from here on: what ``accelerator.prepare`` answered, with the scaler that it steps with.

    Args:
        accelerator: its scaler is the one watched; ``save_state`` writes down the run as well.
        model: what was prepared, one or several.
        optimizer: likewise.
        scheduler: the learning-rate scheduler whose steps are counted, prepared or not.
        checkpoint: the folder that ``load_state`` loads, where a training goes on: so does its run, in a new segment.
        options: those of :func:`scalescope.watch`; the run's config is the accelerator's settings where none is given.

    Returns:
        The scope, as of :func:`scalescope.watch`.

    Raises:
        SettingError: for an argument that cannot be used. Nothing is raised later.
    """
    known = Known(
        model,
        [_own(each) for each in optimizer] if isinstance(optimizer, Sequence) else _own(optimizer),
        accelerator.scaler,
        scheduler.scheduler if isinstance(scheduler, AcceleratedScheduler) else scheduler,
        config=_config(accelerator),
        run=None if checkpoint is None else _run(Path(checkpoint)),
    )
    scope = watch_known(known, options)
    accelerator.register_save_state_pre_hook(_Keeper(accelerator, scope))
    return scope


class _Keeper:
    """Writes down beside what ``save_state`` saves which run it belongs to."""

    def __init__(self, accelerator: Accelerator, scope: Scope) -> None:
        self._accelerator = accelerator
        self._scope = scope

    def __call__(self, _models: object, _weights: object, folder: str) -> None:
        run = self._scope.run_id
        if not run or not self._accelerator.is_main_process:
            return
        try:
            (Path(folder) / _KEPT).write_text(run)
        except OSError as error:
            logger.warning("scalescope: the checkpoint in %s does not say which run it belongs to: %s", folder, error)


def _own(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer that ``prepare`` was given."""
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _config(accelerator: Accelerator) -> dict[str, object]:
    return {
        "mixed_precision": accelerator.mixed_precision,
        "gradient_accumulation_steps": accelerator.gradient_accumulation_steps,
        "num_processes": accelerator.num_processes,
        "distributed_type": accelerator.distributed_type.value,
    }


def _run(checkpoint: Path) -> str | None:
    try:
        return (checkpoint / _KEPT).read_text().strip() or None
    except (OSError, ValueError) as error:
        logger.warning("scalescope: a new run begins: %s does not say which run it belongs to: %s", checkpoint, error)
        return None
