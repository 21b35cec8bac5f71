"""Loops by how passes follow one another: GANs, gradient penalties, SAM, activation checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint

from tests.loops.catalogue import Family
from tests.loops.pieces import (
    BAD,
    UPDATES,
    batch,
    loss_of,
    scaler_at,
    watched_chain,
)
from tests.loops.running import Run
from tests.loops.windowing import clipped
from tests.small_training import Chain, bf16, fp16

PASSES = Family("Passes")


def _pair() -> tuple[Chain, Chain, list[torch.optim.Optimizer]]:
    """A discriminator and a generator, each with its optimizer."""
    critic, maker = Chain(), Chain()
    return critic, maker, [torch.optim.AdamW(model.parameters(), lr=0.01) for model in (critic, maker)]


@PASSES.loop("GAN, one scaler, one update for both")
def _gan_together(run: Run) -> None:
    """Discriminator and generator step one after the other, then scaler.update() once"""
    critic, maker, (first, second) = _pair()
    scaler = scaler_at()
    watch = run.watch([critic, maker], [first, second], scaler, author={"Chain0.": critic, "Chain1.": maker})
    for step in range(UPDATES):
        first.zero_grad()
        critic.overflow_at = 1 if step in BAD else None
        with fp16():
            loss = (
                critic(batch()).float().square().mean() + (critic(maker(batch()).detach()).float() - 1).square().mean()
            )
        scaler.scale(loss).backward()
        watch.complete(first)
        scaler.step(first)
        second.zero_grad()
        critic.overflow_at = None
        with fp16():
            loss = critic(maker(batch())).float().square().mean()
        scaler.scale(loss).backward()
        watch.complete(second)
        scaler.step(second)
        scaler.update()
        watch.done(loss)


@PASSES.loop("GAN, one scaler, an update for each")
def _gan_apart(run: Run) -> None:
    """scaler.update() after each of the two steps; the discriminator steps twice as often"""
    critic, maker, (first, second) = _pair()
    scaler = scaler_at()
    watch = run.watch([critic, maker], [first, second], scaler, author={"Chain0.": critic, "Chain1.": maker})
    for step in range(15):
        turn = step % 3 == 2
        model, optimizer = (maker, second) if turn else (critic, first)
        optimizer.zero_grad()
        critic.overflow_at = 1 if step in BAD else None
        with fp16():
            made = maker(batch())
            loss = critic(made if turn else made.detach()).float().square().mean()
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss):
            watch.fact(unscale="explicit", clip=clipped("norm", 0.1))
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()


@PASSES.loop("GAN in bf16, alternating")
def _gan_plain(run: Run) -> None:
    """No scaler: each step is an update of its own"""
    critic, maker, (first, second) = _pair()
    watch = run.watch([critic, maker], [first, second], author={"Chain0.": critic, "Chain1.": maker})
    for step in range(12):
        optimizer = second if step % 2 else first
        optimizer.zero_grad()
        with bf16():
            made = maker(batch())
            loss = critic(made if step % 2 else made.detach()).float().square().mean()
        loss.backward()
        with watch.update(optimizer, loss=loss):
            optimizer.step()


@PASSES.loop("Gradient penalty")
def _penalty(run: Run) -> None:
    """Torch's own recipe: gradients of the scaled loss with create_graph, unscaled by hand, penalised, scaled again"""
    watch, model, optimizer, scaler = watched_chain(run)
    for step in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(scaler.scale(loss), parameters, create_graph=True)
        inverse = 1.0 / scaler.get_scale()
        with fp16():
            norm = torch.stack([(gradient * inverse).square().sum() for gradient in gradients]).sum().sqrt()
            loss = loss + 0.1 * norm
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss):
            watch.fact(unscale="explicit", clip=clipped("norm", 0.5))
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()


@PASSES.loop("Gradient penalty, by backward(create_graph=True)")
def _double_backward(run: Run) -> None:
    """A critic's penalty on its inputs' gradients, without a scaler"""
    model = Chain()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = run.watch(model, optimizer)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        inputs = batch().requires_grad_()
        score = model(inputs)
        (slope,) = torch.autograd.grad(score.sum(), inputs, create_graph=True)
        loss = score.square().mean() + (slope.norm(dim=1) - 1).square().mean()
        loss.backward()
        with watch.update(optimizer, loss=loss):
            optimizer.step()


def _ascend(model: nn.Module, radius: float) -> list[torch.Tensor]:
    """Climb to the worst weights nearby, along the gradients; where they were before."""
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()
    before = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=radius / (float(norm) + 1e-12))
    return before


def _return(model: nn.Module, before: Iterable[torch.Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), before, strict=True):
            parameter.copy_(value)


@PASSES.loop("SAM, two passes by hand")
def _sam(run: Run) -> None:
    """The first pass climbs, the second's gradients are stepped with; bf16"""
    model = Chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    watch = run.watch(model, optimizer)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        loss_of(model, precision=bf16).backward()
        before = _ascend(model, 0.05)
        optimizer.zero_grad()
        loss = loss_of(model, precision=bf16)
        loss.backward()
        _return(model, before)
        with watch.update(optimizer, loss=loss):
            optimizer.step()


@PASSES.loop("SAM, two passes on one scaler")
def _sam_scaled(run: Run) -> None:
    """The climb is along scaled gradients, whose length does not matter; only the second pass is unscaled"""
    watch, model, optimizer, scaler = watched_chain(run)
    for step in range(UPDATES):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        before = _ascend(model, 0.05)
        optimizer.zero_grad()
        loss = loss_of(model, step)
        scaler.scale(loss).backward()
        _return(model, before)
        with watch.update(optimizer, loss=loss):
            scaler.step(optimizer)
            scaler.update()


class Sam(torch.optim.Optimizer):
    """SAM as people import it: an optimizer around another one, stepped with a closure."""

    def __init__(self, model: nn.Module, base: torch.optim.Optimizer) -> None:
        super().__init__(base.param_groups, {"lr": 0.1})
        self.param_groups = base.param_groups
        self._model = model
        self._base = base

    def step(self, closure: Callable[[], torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        with torch.enable_grad():
            self.zero_grad()
            closure()
        before = _ascend(self._model, 0.05)
        with torch.enable_grad():
            self.zero_grad()
            loss = closure()
        _return(self._model, before)
        self._base.step()
        return loss


@PASSES.loop("SAM as an optimizer with a closure")
def _sam_optimizer(run: Run) -> None:
    """The closure runs twice in each step; the gradients that are recorded are those of the first pass"""
    model = Chain()
    optimizer = Sam(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    watch = run.watch(model, optimizer)
    watch.expect(untold=[name for name, _ in model.named_parameters()])
    passes = 0

    def closure() -> torch.Tensor:
        nonlocal passes
        loss = loss_of(model, precision=bf16)
        loss.backward()
        if passes % 2 == 0:
            watch.complete(optimizer)
        passes += 1
        return loss

    for _ in range(UPDATES):
        watch.done(optimizer.step(closure))


class Checkpointed(Chain):
    """A chain whose two halves are computed again in the backward."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self._reentrant = reentrant

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for half in ((0, 1), (2, 3)):
            inputs = checkpoint(self._part, inputs, half, use_reentrant=self._reentrant)
        return inputs

    def _part(self, inputs: torch.Tensor, places: Iterable[int]) -> torch.Tensor:
        for place in places:
            inputs = torch.tanh(self.layers[place](inputs))
        return inputs


def _checkpointed(run: Run, *, reentrant: bool) -> None:
    model, scaler = Checkpointed(reentrant=reentrant), scaler_at()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = run.watch(model, optimizer, scaler)
    for step in range(UPDATES):
        optimizer.zero_grad()
        for _ in range(2):
            with fp16():
                loss = (model(batch().requires_grad_()).float() - 1).square().mean() / 2
            scaler.scale(loss * (1e38 if step in BAD else 1.0)).backward()
        with watch.update(optimizer, loss=loss, micro_batches=2):
            scaler.step(optimizer)
            scaler.update()


@PASSES.loop("Activation checkpointing")
def _non_reentrant(run: Run) -> None:
    """use_reentrant=False: blocks run their forward again, inside the backward; two micro-batches"""
    _checkpointed(run, reentrant=False)


@PASSES.loop("Activation checkpointing, reentrant")
def _reentrant(run: Run) -> None:
    """use_reentrant=True: each block has a backward of its own, inside the backward; two micro-batches"""
    _checkpointed(run, reentrant=True)
