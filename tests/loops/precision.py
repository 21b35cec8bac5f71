"""Loops by the formats they compute in and keep their parameters in."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from tests.loops.catalogue import Family
from tests.loops.pieces import UPDATES, Precision, batch, plain_updates, scaled_updates, scaler_at
from tests.loops.running import Run
from tests.loops.windowing import clipped
from tests.small_training import WIDTH, Chain, bf16, fp16, fp32

PRECISION = Family("Precision")

_MATRICES = [f"layers.{place}.weight" for place in range(4)]
_ALL = [f"layers.{place}.{kind}" for place in range(4) for kind in ("weight", "bias")]


def _autocast(run: Run, precision: Precision, form: str) -> None:
    model = Chain()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = run.watch(model, optimizer)
    watch.expect(formats=dict.fromkeys(_MATRICES, form))
    plain_updates(watch, model, optimizer, precision)


PRECISION.add("fp16 autocast without a scaler", "parameters in fp32", partial(_autocast, precision=fp16, form="fp16"))
PRECISION.add("bf16 autocast", "parameters in fp32, no scaler", partial(_autocast, precision=bf16, form="bf16"))
PRECISION.add("fp32", "neither autocast nor a scaler", partial(_autocast, precision=fp32, form="fp32"))


def _pure(run: Run, dtype: torch.dtype, form: str, *, clip: bool) -> None:
    model = Chain().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    watch = run.watch(model, optimizer)
    watch.expect(formats=dict.fromkeys(_ALL, form))
    for _ in range(UPDATES):
        optimizer.zero_grad()
        loss = (model(batch().to(dtype)) - 1).square().mean()
        loss.backward()
        with watch.update(optimizer, loss=loss):
            if clip:
                watch.fact(clip=clipped("norm", 0.1))
                clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()


for _dtype, _form in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
    for _clip in (False, True):
        PRECISION.add(
            f"Pure {_form} parameters{', clipped' if _clip else ''}",
            "model.to(dtype), SGD with momentum, no autocast",
            partial(_pure, dtype=_dtype, form=_form, clip=_clip),
        )


@PRECISION.refused("Pure fp16 parameters under a scaler", ValueError, "Attempting to unscale FP16 gradients")
def _pure_scaled(run: Run) -> None:
    """GradScaler over a model whose parameters are fp16 themselves"""
    model, scaler = Chain().half(), scaler_at()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = run.watch(model, optimizer, scaler)
    scaler.scale(model(batch().half()).float().square().mean()).backward()
    with watch.update(optimizer):
        scaler.unscale_(optimizer)


class Island(nn.Module):
    """Half under autocast, but for a block that leaves it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.island = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(inputs))
        with torch.autocast("cpu", enabled=False):
            hidden = torch.tanh(self.island(hidden.float()))
        found: torch.Tensor = self.head(hidden)
        return found


@PRECISION.loop("An fp32 island")
def _island(run: Run) -> None:
    """A block leaves autocast; its gradients are computed in fp32, those around it in fp16"""
    model, scaler = Island(), scaler_at()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = run.watch(model, optimizer, scaler)
    watch.expect(formats={"first.weight": "fp16", "island.weight": "fp32", "head.weight": "fp16"})
    scaled_updates(watch, model, optimizer, scaler)


@PRECISION.loop("Half parameters, fp32 masters by hand")
def _masters(run: Run) -> None:
    """A bf16 copy computes, gradients are cast to fp32 masters, which are stepped and copied back"""
    model = Chain().bfloat16()
    masters = [nn.Parameter(parameter.detach().float()) for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=0.01)
    watch = run.watch(model, optimizer)
    for _ in range(UPDATES):
        model.zero_grad()
        loss = (model(batch().bfloat16()) - 1).square().mean()
        loss.backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
        with watch.update(optimizer, loss=loss, micro_batches=None):
            # The masters take part in no backward.
            watch.fact(zero_grad=None)
            optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)


@PRECISION.loop("float64")
def _double(run: Run) -> None:
    """The whole model in double precision"""
    model = Chain().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = run.watch(model, optimizer)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        loss = (model(batch().double()) - 1).square().mean()
        loss.backward()
        with watch.update(optimizer, loss=loss):
            optimizer.step()
