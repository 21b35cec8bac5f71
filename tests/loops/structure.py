"""Loops by what is trained: frozen, shared, unused, added and adapted parameters, models side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.loops.catalogue import Family
from tests.loops.pieces import (
    BAD,
    UPDATES,
    batch,
    loss_of,
    plain_updates,
    scaled_updates,
    scaler_at,
    watched_chain,
)
from tests.loops.running import Run
from tests.small_training import WIDTH, Chain, fp16, fp32

STRUCTURE = Family("Structure")


@STRUCTURE.loop("Frozen layers")
def _frozen(run: Run) -> None:
    """The first half of the model requires no gradient, and the optimizer holds it all the same"""
    model, scaler = Chain(), scaler_at()
    for parameter in model.layers[:2].parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaled_updates(run.watch(model, optimizer, scaler), model, optimizer, scaler)


@STRUCTURE.loop("Layers frozen and unfrozen in mid-run")
def _thawed(run: Run) -> None:
    """Gradual unfreezing, then the head is frozen instead"""
    model, scaler = Chain(), scaler_at()
    halves = [list(model.layers[:2].parameters()), list(model.layers[2:].parameters())]
    for parameter in halves[0]:
        parameter.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = run.watch(model, optimizer, scaler)
    scaled_updates(watch, model, optimizer, scaler, 5)
    for half, learns in zip(halves, (True, False), strict=True):
        for parameter in half:
            parameter.requires_grad_(learns)
            parameter.grad = None
    # Those by which the passes were counted are frozen now, which shows only when an update has passed without them.
    scaled_updates(watch, model, optimizer, scaler, 1, micro_batches=None)
    scaled_updates(watch, model, optimizer, scaler)


class Tied(nn.Module):
    """One matrix embeds and projects."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(torch.tanh(self.body(self.embedding(words))))
        return found


@STRUCTURE.loop("Shared parameters")
def _tied(run: Run) -> None:
    """Embedding and head are one matrix, recorded once, under its first name"""
    model, scaler = Tied(), scaler_at()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = run.watch(model, optimizer, scaler)
    for step in range(UPDATES):
        optimizer.zero_grad()
        words = torch.randint(0, 32, (2, 6))
        with fp16():
            loss = nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1).float(), words[:, 1:].flatten())
        scaler.scale(loss * (1e38 if step in BAD else 1.0)).backward()
        with watch.update(optimizer, loss=loss):
            scaler.step(optimizer)
            scaler.update()


class Branches(nn.Module):
    """Two branches, of which each pass takes one, and a layer that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH)
        self.taken = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(torch.tanh(self.branches[self.taken](inputs)))
        return found


@STRUCTURE.loop("Unused parameters")
def _unused(run: Run) -> None:
    """A layer is never called, and of two branches each update takes one"""
    model, scaler = Branches(), scaler_at()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = run.watch(model, optimizer, scaler)
    for step in range(UPDATES):
        model.taken = step % 2
        optimizer.zero_grad()
        loss = loss_of(model)
        scaler.scale(loss * (1e38 if step in BAD else 1.0)).backward()
        with watch.update(optimizer, loss=loss):
            scaler.step(optimizer)
            scaler.update()


class Adapted(nn.Module):
    """A frozen layer and a low-rank addition to it, which begins at zero."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base = layer.requires_grad_(False)
        self.down = nn.Linear(WIDTH, 2, bias=False)
        self.up = nn.Linear(2, WIDTH, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.base(inputs) + self.up(self.down(inputs))
        return found


@STRUCTURE.loop("LoRA-style adapters")
def _lora(run: Run) -> None:
    """Every layer is frozen and wrapped; only the adapters are in the optimizer"""
    model, scaler = Chain(), scaler_at()
    model.layers = nn.ModuleList(Adapted(layer) for layer in model.layers if isinstance(layer, nn.Linear))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    scaled_updates(run.watch(model, optimizer, scaler), model, optimizer, scaler)


@STRUCTURE.loop("Parameters added later")
def _added(run: Run) -> None:
    """A new layer joins the model and the optimizer, by add_param_group, in mid-run"""
    watch, model, optimizer, scaler = watched_chain(run)
    scaled_updates(watch, model, optimizer, scaler, 3)
    added = nn.Linear(WIDTH, WIDTH)
    model.layers.append(added)
    optimizer.add_param_group({"params": added.parameters(), "lr": 0.02})
    scaled_updates(watch, model, optimizer, scaler)


@STRUCTURE.loop("A parameter of no watched model")
def _stranger(run: Run) -> None:
    """A learnt temperature in the loss, which is only in the optimizer"""
    model, scaler, temperature = Chain(), scaler_at(), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.AdamW([*model.parameters(), temperature], lr=0.01)
    watch = run.watch(model, optimizer, scaler)
    for step in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model, step) * temperature.exp()
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss):
            scaler.step(optimizer)
            scaler.update()


@STRUCTURE.loop("A frozen teacher")
def _distilled(run: Run) -> None:
    """The teacher runs under no_grad; only the student is watched and trained"""
    student, teacher, scaler = Chain(), Chain().eval(), scaler_at()
    optimizer = torch.optim.AdamW(student.parameters(), lr=0.01)
    watch = run.watch(student, optimizer, scaler)
    run.keep(teacher)
    for step in range(UPDATES):
        optimizer.zero_grad()
        inputs = batch()
        student.overflow_at = 1 if step in BAD else None
        with fp16():
            with torch.no_grad():
                aim = teacher(inputs)
            loss = nn.functional.mse_loss(student(inputs).float(), aim.float())
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss):
            scaler.step(optimizer)
            scaler.update()


class Worn(nn.Module):
    """In-place activations, dropout and batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(0.2))
        self.head = nn.Linear(16, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.body(inputs))
        return found


@STRUCTURE.loop("In-place activations, dropout, batch norm")
def _worn(run: Run) -> None:
    """What hooks on modules are known to break; random numbers and buffers come out the same"""
    model, scaler = Worn(), scaler_at()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaled_updates(run.watch(model, optimizer, scaler), model, optimizer, scaler)


@STRUCTURE.loop("Evaluation between updates")
def _evaluated(run: Run) -> None:
    """Every third update the model runs in eval mode under no_grad"""
    watch, model, optimizer, scaler = watched_chain(run)
    for _ in range(4):
        scaled_updates(watch, model, optimizer, scaler, 3)
        model.eval()
        with torch.no_grad():
            run.losses.append(loss_of(model))
        model.train()


@STRUCTURE.loop("Two models in two scopes")
def _two_scopes(run: Run) -> None:
    """Two trainings in one process, one with a scaler and one in fp32, update by update in turn"""
    one, other, scaler = Chain(), Chain(), scaler_at()
    optimizers: list[Any] = [torch.optim.AdamW(one.parameters(), lr=0.01), torch.optim.SGD(other.parameters(), lr=0.1)]
    first, second = run.watch(one, optimizers[0], scaler), run.watch(other, optimizers[1])
    for step in range(UPDATES):
        optimizers[0].zero_grad()
        loss = loss_of(one, step)
        scaler.scale(loss).backward()
        with first.update(optimizers[0], loss=loss):
            scaler.step(optimizers[0])
            scaler.update()
        plain_updates(second, other, optimizers[1], fp32, 1)
