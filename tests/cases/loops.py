"""The loops. Each takes the server's address, is watched, and answers with its scope, closed.

The numbers are those of the reports where they fit a small model; the sources stand beside each loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import scalescope
import torch
from torch import nn

WARM = 3
Case = Callable[[str], scalescope.Scope]


def linear(inputs: int = 10, outputs: int = 1) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs)


@contextlib.contextmanager
def half() -> Iterator[None]:
    with torch.autocast("cpu", dtype=torch.float16):
        yield


def missing_zero_grad(url: str) -> scalescope.Scope:
    """PaddlePaddle#67895: nobody clears the gradients, so one overflow stays in them."""
    model, scaler = linear(2), torch.amp.GradScaler("cpu", init_scale=2.0**16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with scalescope.watch(model, optimizer, scaler, url=url, every=1) as scope:
        for step in range(6):
            loss = model(torch.ones(1, 2)).sum() * (torch.inf if step == 0 else 1e-3)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return scope


def clip_before_unscale(url: str) -> scalescope.Scope:
    """Pytorch-UNet#468: g = (3, 4) is limited to 1 while it is scaled by 128."""
    weight = nn.Linear(2, 1, bias=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    optimizer = torch.optim.SGD(weight.parameters(), lr=1.0)
    with scalescope.watch(weight, optimizer, scaler, url=url, every=1) as scope:
        for _ in range(WARM):
            optimizer.zero_grad()
            scaler.scale(weight(torch.tensor([3.0, 4.0])).sum()).backward()
            nn.utils.clip_grad_norm_(weight.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    return scope


def loss_not_scaled(url: str) -> scalescope.Scope:
    """nerfacc#307, reversed: one branch forgets scaler.scale() once the scaler is warm."""
    model, scaler = linear(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with scalescope.watch(model, optimizer, scaler, url=url, every=1) as scope:
        for step in range(2 * WARM):
            optimizer.zero_grad()
            loss = model(torch.ones(4, 10)).square().mean()
            (scaler.scale(loss) if step < WARM else loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return scope


def positional_closure(url: str) -> scalescope.Scope:
    """Skorch PR#826: a closure given by position slips through the scaler's guard and is applied scaled."""
    model, scaler = linear(1), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = scaler.scale(model(torch.ones(1, 1)).square().sum())
        loss.backward()
        return loss

    with scalescope.watch(model, optimizer, scaler, url=url, every=1) as scope:
        closure()
        scaler.step(optimizer, closure)
        scaler.update()
    return scope


def scheduler_ahead(url: str) -> scalescope.Scope:
    """pytorch#67590: the warm-up goes on at skipped updates."""
    model, scaler = linear(), torch.amp.GradScaler("cpu", init_scale=2.0**18)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=100)
    with scalescope.watch(model, optimizer, scaler, url=url, every=1) as scope:
        for _ in range(8):
            optimizer.zero_grad()
            with half():
                loss = model(torch.ones(4, 10)).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
    return scope


def fused_skip(url: str) -> scalescope.Scope:
    """accelerate#4242: the fused kernel skips, and whoever watches the calls sees a step."""
    model, scaler = linear(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with scalescope.watch(model, optimizer, scaler, url=url, every=1) as scope:
        for step in range(WARM):
            optimizer.zero_grad()
            loss = model(torch.ones(4, 10)).square().mean() * (1e38 if step == 1 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return scope


def mixed_scales(url: str) -> scalescope.Scope:
    """accelerate#641: the scale is set in the middle of a window; 2 x 8 + 4 x 16 over 16 is 5, not 6."""
    model = nn.Linear(1, 1, bias=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with scalescope.watch(model, optimizer, scaler, url=url, every=1) as scope:
        scaler.scale(model(torch.full((1,), 2.0)).sum()).backward()
        scaler.update(16.0)
        scaler.scale(model(torch.full((1,), 4.0)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    return scope


class Masked(nn.Module):
    """Attention scores whose mask holds -1e9, which fp16 cannot, under a softmax."""

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scores + torch.tensor(-1e9, dtype=torch.float32).to(scores.dtype), dim=-1)


def masked_row(url: str) -> scalescope.Scope:
    """apex#93: a row that is masked whole becomes -inf in half, and its softmax NaN."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 4), Masked(), nn.Linear(4, 1))
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with scalescope.watch(model, optimizer, scaler, url=url, every=1) as scope:
        for _ in range(WARM):
            optimizer.zero_grad()
            with half():
                loss = model(torch.ones(4, 10)).float().sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return scope


class Norm(nn.Module):
    """A norm written by hand: of a row of zeros its derivative is 0 / 0."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given.square().sum(dim=-1).sqrt()


def norm_of_zeros(url: str) -> scalescope.Scope:
    """The forward and the loss are finite; the backward is not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 4, bias=False), nn.ReLU(), Norm())
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with scalescope.watch(model, optimizer, scaler, url=url, every=1) as scope:
        for _ in range(WARM):
            optimizer.zero_grad()
            scaler.scale(model(torch.zeros(4, 10)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    return scope


def bf16_weights(url: str) -> scalescope.Scope:
    """torchtune#2254: weights of 1 kept in bf16 do not feel steps of 1e-3."""
    model = nn.Linear(64, 1, bias=False, dtype=torch.bfloat16)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with scalescope.watch(model, optimizer, url=url, every=1) as scope:
        for _ in range(WARM):
            optimizer.zero_grad()
            model(torch.ones(1, 64, dtype=torch.bfloat16)).sum().backward()
            optimizer.step()
    return scope


def adam_eps(url: str) -> scalescope.Scope:
    """pytorch#26218: in half an eps of 1e-8 is 0, and a gradient of 0 becomes NaN."""
    model = nn.Linear(4, 1, bias=False, dtype=torch.float16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
    with scalescope.watch(model, optimizer, url=url, every=1) as scope:
        for _ in range(WARM):
            optimizer.zero_grad()
            model(torch.tensor([[0.0, 1e-3, 1e-3, 1e-3]], dtype=torch.float16)).sum().backward()
            optimizer.step()
    return scope


def no_scaler(url: str) -> scalescope.Scope:
    """mmdetection#3690: fp16 autocast without a scaler loses what an fp32 backward would have."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(32, 64)

    def loss_of() -> torch.Tensor:
        loss: torch.Tensor = model(batch).float().square().mean() * 1e-4
        return loss

    with scalescope.watch(model, optimizer, url=url, every=1) as scope:
        for _ in range(WARM):
            optimizer.zero_grad()
            with half():
                loss = loss_of()
            loss.backward()
            optimizer.step()
        scope.probe(loss_of)
    return scope


def near_the_ceiling(url: str) -> scalescope.Scope:
    """Transformers' T5 in fp16: a feed-forward whose outputs come within an octave of 65504."""
    wide, head = nn.Linear(4, 4, bias=False), nn.Linear(4, 1, bias=False)
    nn.init.constant_(wide.weight, 1.0)
    nn.init.constant_(head.weight, 1e-4)
    model = nn.Sequential(wide, head)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    with scalescope.watch(model, optimizer, url=url, every=1) as scope:
        for _ in range(WARM):
            optimizer.zero_grad()
            with half():
                loss = model(torch.full((1, 4), 12_000.0)).float().sum()
            loss.backward()
            optimizer.step()
    return scope


CASES: dict[str, Case] = {
    "missing zero_grad": missing_zero_grad,
    "clip before unscale": clip_before_unscale,
    "loss not scaled": loss_not_scaled,
    "positional closure": positional_closure,
    "scheduler ahead": scheduler_ahead,
    "fused skip": fused_skip,
    "mixed scales": mixed_scales,
    "masked row": masked_row,
    "norm of zeros": norm_of_zeros,
    "bf16 weights": bf16_weights,
    "adam eps": adam_eps,
    "no scaler": no_scaler,
    "near the ceiling": near_the_ceiling,
}
