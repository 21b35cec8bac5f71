"""Loops with torch.compile: before the hook, after it, in place, and around what steps."""

from __future__ import annotations

import warnings
from functools import partial

import torch
from torch import nn

from tests.loops.catalogue import Family
from tests.loops.pieces import UPDATES, loss_of, scaled_updates, scaler_at
from tests.loops.running import Run
from tests.small_training import WIDTH, bf16

COMPILED = Family("Compiled")

# Where the whole graph goes through autograd's own tracing, and where only the forward is traced.
_BACKENDS = ("eager", "aot_eager")


def _layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def _compiled(model: nn.Module, backend: str) -> nn.Module:
    """The module that torch.compile makes of a module: its annotations say only that it can be called."""
    compiled = torch.compile(model, backend=backend)
    assert isinstance(compiled, nn.Module)
    return compiled


def _before(run: Run, backend: str) -> None:
    model, scaler = _layers(), scaler_at()
    compiled = _compiled(model, backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = run.watch(compiled, optimizer, scaler, author={"": model})
    scaled_updates(watch, compiled, optimizer, scaler)
    torch.compiler.reset()


def _after(run: Run, backend: str) -> None:
    model, scaler = _layers(), scaler_at()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = run.watch(model, optimizer, scaler)
    scaled_updates(watch, _compiled(model, backend), optimizer, scaler)
    torch.compiler.reset()


def _in_mid_run(run: Run, backend: str) -> None:
    model, scaler = _layers(), scaler_at()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    compiled = _compiled(model, backend)
    for _ in range(2):
        scaler.scale(loss_of(compiled)).backward()
    optimizer.zero_grad()
    watch = run.watch(compiled, optimizer, scaler, author={"": model})
    scaled_updates(watch, compiled, optimizer, scaler)
    torch.compiler.reset()


def _in_place(run: Run, backend: str) -> None:
    model, scaler = _layers(), scaler_at()
    model.compile(backend=backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaled_updates(run.watch(model, optimizer, scaler), model, optimizer, scaler)
    torch.compiler.reset()


for _backend in _BACKENDS:
    for _name, _what, _loop in (
        ("torch.compile before watch", "the compiled model is watched before its first call", _before),
        ("torch.compile after watch", "the model is watched, and compiled after that", _after),
        ("torch.compile, watched after its first call", "the graph is there when the hook comes", _in_mid_run),
        ("Module.compile()", "compiled in place, then watched", _in_place),
    ):
        COMPILED.add(f"{_name}, {_backend}", _what, partial(_loop, backend=_backend))


@COMPILED.loop("A compiled step")
def _compiled_step(run: Run) -> None:
    """optimizer.step() is called inside a compiled function"""
    model = _layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = run.watch(model, optimizer)

    @torch.compile(backend="eager")
    def step() -> None:
        optimizer.step()

    for _ in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model, precision=bf16)
        loss.backward()
        with watch.update(optimizer, loss=loss), warnings.catch_warnings():
            # Tracing an optimizer imports what torch itself has deprecated.
            warnings.simplefilter("ignore")
            step()
    torch.compiler.reset()


@COMPILED.loop("A compiled loss function")
def _compiled_function(run: Run) -> None:
    """A function around the model is compiled; the model itself does not know"""
    model, scaler = _layers(), scaler_at()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = run.watch(model, optimizer, scaler)

    @torch.compile(backend="aot_eager")
    def loss_function(inputs: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = (model(inputs).float() - 1).square().mean()
        return loss

    for _ in range(UPDATES):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_function(torch.randn(4, WIDTH))
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss):
            scaler.step(optimizer)
            scaler.update()
    torch.compiler.reset()
