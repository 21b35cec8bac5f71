"""Loops by optimizer: torch's own in every implementation, others', several at once, closures, sparse ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from tests.loops.catalogue import Family
from tests.loops.pieces import BAD, UPDATES, batch, loss_of, plain_updates, scaled_updates, scaler_at
from tests.loops.running import Run, Watch
from tests.loops.windowing import clipped
from tests.small_training import WIDTH, Chain, bf16, fp16, fp32

OPTIMIZERS = Family("Optimizers")

_KINDS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "SGD": partial(torch.optim.SGD, momentum=0.9),
    "Adagrad": torch.optim.Adagrad,
}
_WAYS = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def _torchs(make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer], run: Run, *, clip: bool) -> None:
    model, scaler = Chain(), scaler_at()
    optimizer = make(model.parameters())
    watch = run.watch(model, optimizer, scaler)
    for step in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss):
            if clip:
                watch.fact(unscale="explicit", clip=clipped("norm", 0.5))
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()


for _kind, _make in _KINDS.items():
    for _way, _flags in _WAYS.items():
        for _clip, _told in ((False, "implicit unscale, no clipping"), (True, "explicit unscale_, clipped by norm")):
            OPTIMIZERS.add(
                f"{_kind}, {_way}, {_told.partition(',')[0]}",
                f"torch.optim.{_kind}, {_way}; {_told}",
                partial(_torchs, partial(_make, lr=0.01, **_flags), clip=_clip),
            )


@OPTIMIZERS.refused("Adam, capturable", AssertionError, "capturable=True, params and state_steps must be on")
def _capturable(run: Run) -> None:
    """Adam with its step count on the device, as CUDA graphs need it"""
    model = Chain()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)
    plain_updates(run.watch(model, optimizer), model, optimizer)


@OPTIMIZERS.refused("A step captured in a CUDA graph", RuntimeError, "Tried to instantiate dummy base class CUDAGraph")
def _cuda_graph(run: Run) -> None:
    """forward, backward and step recorded once with torch.cuda.graph and replayed"""
    model = Chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = run.watch(model, optimizer)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        plain_updates(watch, model, optimizer)


class Lion(torch.optim.Optimizer):
    """An optimizer that torch does not know, as people bring them: the sign of a blend of gradient and momentum."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            one, two = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is not None:
                    moment = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
                    parameter.sub_(torch.lerp(parameter.grad, moment, one).sign(), alpha=group["lr"])
                    moment.lerp_(parameter.grad, 1 - two)


@OPTIMIZERS.loop("Third-party optimizer, scaled")
def _third_party(run: Run) -> None:
    """Lion, written for this loop: a torch.optim.Optimizer that neither torch nor the hook knows"""
    model, scaler = Chain(), scaler_at()
    optimizer = Lion(model.parameters())
    scaled_updates(run.watch(model, optimizer, scaler), model, optimizer, scaler)


@OPTIMIZERS.loop("Third-party optimizer, bf16")
def _third_party_plain(run: Run) -> None:
    """The same without a scaler"""
    model = Chain()
    optimizer = Lion(model.parameters())
    plain_updates(run.watch(model, optimizer), model, optimizer, bf16)


@OPTIMIZERS.loop("Several optimizers on one scaler")
def _several(run: Run) -> None:
    """Two models of one loss step one after the other; only the second overflows"""
    models, scaler = [Chain(), Chain()], scaler_at()
    optimizers = [torch.optim.AdamW(models[0].parameters(), lr=0.01), torch.optim.SGD(models[1].parameters(), lr=0.02)]
    watch = run.watch(models, optimizers, scaler, author={"Chain0.": models[0], "Chain1.": models[1]})
    for step in range(UPDATES):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = loss_of(models[0]) + loss_of(models[1], step)
        scaler.scale(loss).backward()
        with watch.update(*optimizers, loss=loss):
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()


@OPTIMIZERS.loop("Two optimizers of one class")
def _two_of_a_kind(run: Run) -> None:
    """Matrices and biases apart, each with its own AdamW, clipped together, on one scaler"""
    model, scaler = Chain(), scaler_at()
    parts = [[p for p in model.parameters() if p.ndim == dims] for dims in (2, 1)]
    optimizers = [torch.optim.AdamW(part, lr=0.01, weight_decay=0.1 * place) for place, part in enumerate(parts)]
    watch = run.watch(model, optimizers, scaler)
    for step in range(UPDATES):
        model.zero_grad()
        loss = loss_of(model, step)
        scaler.scale(loss).backward()
        with watch.update(*optimizers, loss=loss):
            watch.fact(unscale="explicit", clip=clipped("norm", 0.5))
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.5)
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()


@OPTIMIZERS.loop("An optimizer for each parameter, stepped inside the backward")
def _inside_the_backward(run: Run) -> None:
    """Gradients are used and freed as they come, which saves their memory"""
    model = Chain()
    optimizers: dict[torch.Tensor, torch.optim.Optimizer]
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}
    watch = run.watch(model, list(optimizers.values()))

    def step(parameter: torch.Tensor) -> None:
        watch.complete(optimizers[parameter])
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    handles = [parameter.register_post_accumulate_grad_hook(step) for parameter in model.parameters()]
    for _ in range(UPDATES):
        loss = loss_of(model, precision=fp32)
        loss.backward()
        watch.done(loss)
    # What comes after ours would be taken for ours.
    for handle in handles:
        handle.remove()


@OPTIMIZERS.loop("A learning-rate schedule and two groups")
def _groups(run: Run) -> None:
    """OneCycleLR over two parameter groups, stepped after each update, skipped ones included"""
    model, scaler = Chain(), scaler_at()
    groups: list[dict[str, Any]]
    groups = [
        {"params": model.layers[:2].parameters(), "lr": 0.01},
        {"params": model.layers[2:].parameters()},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.05, 0.1], total_steps=UPDATES + 1)
    watch = run.watch(model, optimizer, scaler)
    run.keep(schedule)
    for step in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss):
            watch.fact(scheduler={"class": "OneCycleLR", "steps": 1, "follows": _clock("attempted", step)})
            scaler.step(optimizer)
            scaler.update()
        schedule.step()


def _clock(follows: str, step: int) -> str:
    """What a schedule follows shows at the first update that is skipped."""
    return follows if step >= min(BAD) else "unknown"


@OPTIMIZERS.loop("A schedule that rests where an update is skipped")
def _resting(run: Run) -> None:
    """ExponentialLR, stepped only where the scale did not fall, which is how a skip shows"""
    model, scaler = Chain(), scaler_at()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    watch = run.watch(model, optimizer, scaler)
    run.keep(schedule)
    for step in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss):
            applied, scale = int(step not in BAD), scaler.get_scale()
            watch.fact(scheduler={"class": "ExponentialLR", "steps": applied, "follows": _clock("applied", step)})
            scaler.step(optimizer)
            scaler.update()
        if scaler.get_scale() >= scale:
            schedule.step()


@OPTIMIZERS.loop("LBFGS with a closure")
def _lbfgs(run: Run) -> None:
    """Each step evaluates its closure several times; the update's gradients are those of the first evaluation"""
    model = Chain()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    watch = run.watch(model, optimizer)
    watch.expect(untold=[name for name, _ in model.named_parameters()])
    for _ in range(UPDATES):
        watch.done(optimizer.step(_evaluation(watch, model, optimizer)))


def _evaluation(watch: Watch, model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], torch.Tensor]:
    """A closure over one batch. The gradients of its first evaluation are those of the update."""
    inputs, complete = batch(), [partial(watch.complete, optimizer)]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = (model(inputs) - 1).square().mean()
        loss.backward()
        if complete:
            complete.pop()()
        return loss

    return closure


@OPTIMIZERS.loop("SGD with a closure")
def _closure(run: Run) -> None:
    """The closure computes the gradients inside step()"""
    model = Chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = run.watch(model, optimizer)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, precision=bf16)
        loss.backward()
        watch.complete(optimizer)
        return loss

    for _ in range(UPDATES):
        watch.done(optimizer.step(closure))


@OPTIMIZERS.refused("A closure under a scaler", RuntimeError, "Closure use is not currently supported")
def _scaled_closure(run: Run) -> None:
    """scaler.step(optimizer, closure)"""
    model, scaler = Chain(), scaler_at()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, scaler)
    scaler.scale(loss_of(model)).backward()
    scaler.step(optimizer, closure=lambda: scaler.scale(loss_of(model)).backward())


@OPTIMIZERS.loop("A positional closure under a scaler")
def _unnoticed_closure(run: Run) -> None:
    """Torch does not notice it, and steps with the scaled gradients that the closure computes"""
    model, scaler = Chain(), scaler_at()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = run.watch(model, optimizer, scaler)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        scaler.scale(loss).backward()
        # Not called where the update is skipped.
        watch.fact(backward_after_unscale={"backwards": 1, "factor": scaler.get_scale()})
        return loss

    for step in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss):
            watch.fact(closure_with_scaler=True)
            scaler.step(optimizer, closure)
            scaler.update()


class Words(nn.Module):
    """An embedding with sparse gradients under a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, WIDTH, sparse=True)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(torch.tanh(self.embedding(words)))
        return found


def _words_loss(model: Words, step: int) -> torch.Tensor:
    with fp16():
        loss: torch.Tensor = model(torch.randint(0, 32, (6,))).float().square().mean()
    return loss * (1e38 if step in BAD else 1.0)


@OPTIMIZERS.loop("Sparse gradients, SparseAdam beside AdamW")
def _sparse_adam(run: Run) -> None:
    """Embedding(sparse=True) stepped by SparseAdam, the rest by AdamW, on one scaler"""
    model, scaler = Words(), scaler_at()
    sparse = torch.optim.SparseAdam(model.embedding.parameters(), lr=0.01)
    dense = torch.optim.AdamW(model.head.parameters(), lr=0.01)
    watch = run.watch(model, [sparse, dense], scaler)
    watch.expect(untold=["embedding.weight"])
    for step in range(UPDATES):
        model.zero_grad()
        loss = _words_loss(model, step)
        scaler.scale(loss).backward()
        with watch.update(sparse, dense, loss=loss):
            scaler.step(sparse)
            scaler.step(dense)
            scaler.update()


@OPTIMIZERS.loop("Sparse gradients, SGD without a scaler")
def _sparse_sgd(run: Run) -> None:
    """Embedding(sparse=True) and the rest stepped by one SGD"""
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = run.watch(model, optimizer)
    watch.expect(untold=["embedding.weight"])
    for _ in range(UPDATES):
        optimizer.zero_grad()
        loss = _words_loss(model, -1)
        loss.backward()
        with watch.update(optimizer, loss=loss):
            optimizer.step()
