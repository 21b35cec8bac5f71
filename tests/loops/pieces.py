"""What the loops share: a small model, its data and loss, and the updates at which it overflows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.amp import GradScaler

from tests.loops.running import Run, Watch
from tests.small_training import WIDTH, Chain, fp16

Precision = Callable[[], AbstractContextManager[object]]

UPDATES = 10
# Between two periodic samples, one right after the other, and not the first.
BAD = frozenset({3, 6, 7})


def scaler_at(scale: float = 1024.0, **settings: float) -> GradScaler:
    """A scaler that doubles within the loop's few updates."""
    return GradScaler("cpu", init_scale=scale, **{"growth_interval": 3, **settings})  # type: ignore[arg-type]


def batch() -> torch.Tensor:
    return torch.randn(4, WIDTH)


def loss_of(model: nn.Module, step: int = -1, precision: Precision = fp16) -> torch.Tensor:
    """The loss of one micro-batch; a :class:`Chain` overflows in the backward of a step in ``BAD``."""
    chain = next((module for module in model.modules() if isinstance(module, Chain)), None)
    if chain is not None:
        chain.overflow_at = 2 if step in BAD else None
    with precision():
        loss: torch.Tensor = (model(batch()).float() - 1).square().mean()
    return loss


def scaled_updates(
    watch: Watch,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: GradScaler,
    updates: int = UPDATES,
    *,
    first: int = 0,
    micro_batches: int | None = 1,
) -> None:
    """The plain loop with a scaler, implicit unscale and no clipping, from step ``first`` on.

    ``micro_batches`` is None where nobody can tell what is in the gradients.
    """
    for step in range(first, first + updates):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss, micro_batches=micro_batches):
            if micro_batches is None:
                watch.fact(zero_grad=None)
            scaler.step(optimizer)
            scaler.update()


def plain_updates(
    watch: Watch,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    precision: Precision = fp16,
    updates: int = UPDATES,
) -> None:
    """The plain loop without a scaler."""
    for _ in range(updates):
        optimizer.zero_grad()
        loss = loss_of(model, precision=precision)
        loss.backward()
        with watch.update(optimizer, loss=loss):
            optimizer.step()


def watched_chain(run: Run, lr: float = 0.01) -> tuple[Watch, Chain, torch.optim.Optimizer, GradScaler]:
    """A chain under AdamW and a scaler, watched."""
    model, scaler = Chain(), scaler_at()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    return run.watch(model, optimizer, scaler), model, optimizer, scaler
