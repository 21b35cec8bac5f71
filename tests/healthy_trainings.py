"""Trainings that nothing is wrong with, of many kinds, watched by a server: no built-in rule may fire on any.

Each is a loop as people write it, with numbers that are usual for so small a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import scalescope
import torch
from scalescope.scope import Scope
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.functional import mse_loss
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from tests import healthy_models as models
from tests.healthy_models import Task
from tests.judged import reach

EVERY = 10
# One update in this many is probing, once the scale has settled.
GROWTH_INTERVAL = 200


@dataclass(frozen=True)
class Loop:
    """How a task is trained; the defaults are an ordinary fp16 training."""

    task: Callable[[], Task]
    optimizer: Callable[[nn.Module], Optimizer] = lambda model: AdamW(model.parameters(), lr=1e-3)
    dtype: torch.dtype | None = torch.float16
    scaled: bool = True
    micro_batches: int = 1
    clip: float | None = None
    # Update -> the part of the learning rate, of so many updates in all.
    schedule: Callable[[int, int], float] | None = None

    def __call__(self, url: str, name: str, updates: int, seed: int = 0) -> str:
        """Train, and say which run it was."""
        torch.manual_seed(seed)
        return Trained(self, self.task(), updates, seed).train(url, name)


class Trained:
    """One training by a loop."""

    def __init__(self, loop: Loop, task: Task, updates: int, seed: int) -> None:
        self.loop, self.task, self.updates = loop, task, updates
        self.draw = torch.Generator().manual_seed(seed)
        self.optimizer = loop.optimizer(task.model)
        self.scaler = GradScaler("cpu", enabled=loop.scaled, growth_interval=GROWTH_INTERVAL)
        schedule = loop.schedule
        self.scheduler = schedule and LambdaLR(self.optimizer, lambda step: schedule(step, updates))

    def train(self, url: str, name: str, run: str | None = None) -> str:
        with self.watched(url, name, run) as scope:
            for _ in range(self.updates):
                scope.log(loss=self.update())
            reach(scope)
        return scope.run_id

    def watched(self, url: str, name: str, run: str | None = None) -> Scope:
        scaler = self.scaler if self.loop.scaled else None
        return scalescope.watch(
            self.task.model, self.optimizer, scaler, url=url, run=run, project="healthy", name=name, every=EVERY
        )

    def update(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = sum((self._backward() for _ in range(self.loop.micro_batches)), torch.zeros(()))
        if self.loop.clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.task.model.parameters(), self.loop.clip)
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        # The schedule follows the updates that are applied.
        if self.scheduler is not None and self.scaler.get_scale() >= before:
            self.scheduler.step()
        return loss

    def _backward(self) -> Tensor:
        inputs, targets = self.task.batch(self.draw)
        with torch.autocast("cpu", dtype=self.loop.dtype, enabled=self.loop.dtype is not None):
            loss = self.task.loss(self.task.model(inputs).float(), targets) / self.loop.micro_batches
        self.scaler.scale(loss).backward()
        return loss.detach()


def warm_up_and_cosine(step: int, updates: int) -> float:
    """From 0 in a tenth of the training, and along half a cosine to 0, where it stays for the last twentieth."""
    warm, ends = updates // 10, updates - updates // 20
    if step < warm:
        return step / warm
    return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (step - warm) / (ends - warm)))


def two_groups(model: nn.Module) -> Optimizer:
    """The first layer is frozen by a learning rate of 0."""
    first, *others = model.children()
    rest = [parameter for layer in others for parameter in layer.parameters()]
    groups: list[dict[str, object]] = [{"params": rest}, {"params": [*first.parameters()], "lr": 0.0}]
    return AdamW(groups, lr=1e-3)


def low_rank(model: nn.Module) -> Optimizer:
    """What is not frozen."""
    return AdamW((each for each in model.parameters() if each.requires_grad), lr=1e-2)


def frozen(model: nn.Module) -> Optimizer:
    """The first layer is not trained at all."""
    next(model.children()).requires_grad_(requires_grad=False)
    return AdamW((each for each in model.parameters() if each.requires_grad), lr=1e-3)


def resumed(url: str, name: str, updates: int, seed: int = 0) -> str:
    """Half of it, then the other half from a checkpoint with the scaler's state."""
    torch.manual_seed(seed)
    loop = Loop(models.layers)
    first = Trained(loop, loop.task(), updates // 2, seed)
    run = first.train(url, name)
    second = Trained(loop, loop.task(), updates - updates // 2, seed + 1)
    second.task.model.load_state_dict(first.task.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.scaler.load_state_dict(first.scaler.state_dict())
    return second.train(url, name, run)


def adversarial(url: str, name: str, updates: int, seed: int = 0) -> str:
    """Two models and two optimizers; one of the models learns at every fifth update, and its gradients are zeroed."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    maker, judge = nn.Linear(4, models.WIDTH), nn.Sequential(nn.Linear(models.WIDTH, 8), nn.Tanh(), nn.Linear(8, 1))
    makes, judges = (Adam(model.parameters(), lr=1e-3) for model in (maker, judge))
    scaler = GradScaler("cpu", growth_interval=GROWTH_INTERVAL)
    watched = scalescope.watch(
        [maker, judge], [makes, judges], scaler, url=url, project="healthy", name=name, every=EVERY
    )
    with watched as scope:
        for step in range(updates):
            judges.zero_grad(set_to_none=False)
            with torch.autocast("cpu", dtype=torch.float16):
                made = maker(torch.randn(8, 4, generator=draw))
                real = torch.randn(8, models.WIDTH, generator=draw)
                loss = judge(made.detach()).float().square().mean() + (judge(real).float() - 1).square().mean()
            scaler.scale(loss).backward()
            scaler.step(judges)
            if step % 5 == 4:
                makes.zero_grad(set_to_none=False)
                with torch.autocast("cpu", dtype=torch.float16):
                    fooled = (judge(maker(torch.randn(8, 4, generator=draw))).float() - 1).square().mean()
                scaler.scale(fooled).backward()
                scaler.step(makes)
            scaler.update()
            scope.log(loss=loss.detach())
        reach(scope)
    return scope.run_id


def long_run(url: str, name: str, updates: int = 5200, seed: int = 0) -> str:
    """So long that windows of 10,000 updates are known, of the smallest model; it learns for all of it."""
    torch.manual_seed(seed)
    model = nn.Linear(8, 1, bias=False)
    optimizer, scaler = SGD(model.parameters(), lr=1e-4), GradScaler("cpu", init_scale=2.0**12)
    inputs = torch.randn(64, 4, 8)
    targets = inputs.sum(dim=2, keepdim=True) + 0.1 * torch.randn(64, 4, 1)
    with scalescope.watch(model, optimizer, scaler, url=url, project="healthy", name=name, every=100) as scope:
        for step in range(updates):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                told = model(inputs[step % 64])
            loss = mse_loss(told.float(), targets[step % 64])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scope.log(loss=loss.detach())
        reach(scope)
    return scope.run_id


Kind = Callable[[str, str, int], str]

KINDS: dict[str, Kind] = {
    "fp16": Loop(models.layers),
    "fp16, many micro-batches, clipped": Loop(models.layers, micro_batches=4, clip=1.0),
    "fp16, warm-up from 0 and cosine to 0": Loop(models.layers, schedule=warm_up_and_cosine),
    "bf16 without a scaler": Loop(models.layers, dtype=torch.bfloat16, scaled=False),
    "bf16, warm-up and cosine, clipped": Loop(
        models.attention, dtype=torch.bfloat16, scaled=False, clip=1.0, schedule=warm_up_and_cosine
    ),
    "fp32": Loop(models.layers, dtype=None, scaled=False),
    "fp32, SGD with momentum": Loop(
        models.layers, lambda model: SGD(model.parameters(), lr=0.05, momentum=0.9), dtype=None, scaled=False
    ),
    "fp32, warm-up and cosine": Loop(models.layers, dtype=None, scaled=False, schedule=warm_up_and_cosine),
    "fp16, convolutions and BatchNorm": Loop(models.convolutions),
    "fp16, SGD on convolutions": Loop(models.convolutions, lambda model: SGD(model.parameters(), lr=0.05)),
    "bf16, convolutions and BatchNorm": Loop(models.convolutions, dtype=torch.bfloat16, scaled=False),
    "fp16, LSTM and embedding": Loop(models.recurrent, clip=1.0),
    "fp16, attention and embedding": Loop(models.attention),
    "fp16, adapters of low rank": Loop(models.adapted, low_rank),
    "fp16, two groups, one at a rate of 0": Loop(models.layers, two_groups),
    "fp16, first layer frozen": Loop(models.layers, frozen),
    "fp16, one example a batch": Loop(models.alone, lambda model: SGD(model.parameters(), lr=1e-3)),
    "fp16, strong weight decay": Loop(
        models.layers, lambda model: AdamW(model.parameters(), lr=1e-3, weight_decay=1.0)
    ),
    "fp16, two optimizers, one every fifth update": adversarial,
    "fp16, resumed": resumed,
}
