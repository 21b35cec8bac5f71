"""Trainings that something is wrong with, in the way that people report it, watched by a server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import scalescope
import torch
from scalescope.scope import Scope
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD, Adam, Optimizer

from tests.judged import reach

WIDTH = 8
# Windows of 1000 updates are known from half of it on.
UPDATES = 650
# So are those of 10,000.
LONG = 5200


@dataclass
class Parts:
    """What a loop is made of: a small model, its optimizer, and a scaler that has settled."""

    model: nn.Module
    optimizer: Optimizer
    scaler: GradScaler

    @classmethod
    def of(
        cls,
        model: nn.Module | None = None,
        lr: float = 1e-3,
        *,
        init_scale: float = 2.0**12,
        growth_interval: int = 2000,
    ) -> Parts:
        # The same in whatever order the tests run.
        torch.manual_seed(0)
        model = model or nn.Linear(WIDTH, WIDTH)
        trained = [each for each in model.parameters() if each.requires_grad]
        scaler = GradScaler("cpu", init_scale=init_scale, growth_interval=growth_interval)
        return cls(model, SGD(trained, lr=lr), scaler)

    def watch(self, url: str, every: int = 25, run: str | None = None) -> Scope:
        return scalescope.watch(self.model, self.optimizer, self.scaler, url=url, every=every, run=run)

    @contextmanager
    def watched(self, url: str, every: int = 25, run: str | None = None) -> Iterator[Scope]:
        with self.watch(url, every, run) as scope:
            yield scope
            reach(scope)

    def backward(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()

    def step(self, loss: Tensor) -> None:
        """A whole update."""
        self.backward(loss)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def loss(self, batch: Tensor, dtype: torch.dtype = torch.float16) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            told: Tensor = (self.model(batch).float() - 1).square().mean()
        return told


def batches() -> Tensor:
    """[64, 4, WIDTH], the same for every training."""
    return torch.randn(64, 4, WIDTH, generator=torch.Generator().manual_seed(0))


def nan_loss(url: str) -> str:
    """The loss is NaN at every update, and no scale cures it (C01, C02, C106)."""
    parts, inputs = Parts.of(init_scale=2.0**16), batches()
    with parts.watched(url) as scope:
        for step in range(200):
            loss = parts.loss(inputs[step % 64]) * math.nan
            parts.step(loss)
            scope.log(loss=loss.detach())
    return scope.run_id


def pinned_scale(url: str) -> str:
    """A fixed scale that hides that every update overflows (C05, C70)."""
    parts, inputs = Parts.of(init_scale=512.0), batches()
    with parts.watched(url) as scope:
        for step in range(20):
            parts.backward(parts.loss(inputs[step]) * 1e9)
            parts.scaler.step(parts.optimizer)
            parts.scaler.update(512.0)
    return scope.run_id


def remade_scaler(url: str) -> str:
    """A scaler made in the loop: always at 65536, where a summed loss overflows (C16)."""
    parts, inputs = Parts.of(init_scale=2.0**16), batches()
    with parts.watched(url) as scope:
        for step in range(20):
            parts.scaler = GradScaler("cpu")
            parts.step(1e3 * parts.loss(inputs[step]))
    return scope.run_id


def resumed_without_its_scaler(url: str) -> str:
    """It has come down to 2^12 where it fits, and begins at 65536 again (C64)."""
    inputs = batches()
    first = Parts.of()
    with first.watched(url) as scope:
        for step in range(40):
            first.step(10 * first.loss(inputs[step]))
    second = Parts.of(first.model, init_scale=2.0**16)
    with second.watched(url, run=scope.run_id):
        for step in range(40):
            second.step(10 * second.loss(inputs[step]))
    return scope.run_id


def rare_term(url: str) -> str:
    """A term of the loss that is computed at every 50th update overflows in fp16 whatever the scale (C37, C107)."""
    parts, inputs = Parts.of(), batches()
    with parts.watched(url) as scope:
        for step in range(420):
            loss = parts.loss(inputs[step % 64])
            parts.step(loss * 1e12 if step % 50 == 49 else loss)
    return scope.run_id


def sagging(url: str) -> str:
    """Gradients that grow without an end, ever faster, and a scale that sags with them (C03)."""
    parts, inputs = Parts.of(lr=0.0, init_scale=2.0**16), batches()
    with parts.watched(url) as scope:
        for step in range(400):
            parts.step(2.0 ** (step / 60) ** 1.5 * parts.loss(inputs[0]))
    return scope.run_id


def runaway(url: str) -> str:
    """A loss of which nothing depends on the weights any more: no gradient, so nothing ever overflows (C21)."""
    parts, inputs = Parts.of(growth_interval=1), batches()
    with parts.watched(url) as scope:
        for step in range(100):
            parts.step(parts.loss(inputs[step % 64]) * 0.0)
    return scope.run_id


def scaled_bf16(url: str) -> str:
    """A scaler left on under bf16 (C22)."""
    parts, inputs = Parts.of(), batches()
    with parts.watched(url, every=5) as scope:
        for step in range(60):
            parts.step(parts.loss(inputs[step % 64], torch.bfloat16))
    return scope.run_id


def short_interval(url: str) -> str:
    """A growth interval of 5, so that one update in six is thrown away (C17, C18)."""
    parts, inputs = Parts.of(lr=0.0, init_scale=2.0**14, growth_interval=5), batches()
    with parts.watched(url) as scope:
        for step in range(UPDATES):
            parts.step(10 * parts.loss(inputs[step % 64]))
    return scope.run_id


def long_decline(url: str) -> str:
    """A rate that is far too small, while the task grows harder; late, one layer's gradients fade, the rest explode."""
    model = Branches()
    parts, inputs = Parts.of(model, lr=1e-10, init_scale=2.0**8, growth_interval=10**6), batches()[0]
    with parts.watched(url, every=100) as scope:
        for step in range(LONG):
            late = step >= LONG - 700
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(inputs, small=2.0**-32 if late else 1.0)
            parts.step(30 * loss if late else loss)
            scope.log(loss=10 + step / LONG + loss.detach())
    return scope.run_id


class Branches(nn.Module):
    """Two layers side by side, of which the loss of one may be made small."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.Linear(WIDTH, 1, bias=False) for _ in range(2))

    def forward(self, batch: Tensor, small: float) -> Tensor:
        told: Tensor = self.one(batch).float().sum() + small * self.other(batch).float().sum()
        return told


class Layers(nn.Module):
    """Small layers in fp16, each with a trouble of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dead, self.faint = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.coarse = nn.Parameter(torch.ones(WIDTH, dtype=torch.bfloat16))
        self.loud = nn.Linear(WIDTH, 1, bias=False).requires_grad_(requires_grad=False)
        nn.init.constant_(self.loud.weight, 6000.0)

    def forward(self, batch: Tensor, faintness: float) -> Tensor:
        loss: Tensor = (self.second(torch.tanh(self.first(batch))).float() - 1).square().mean()
        self.loud(torch.ones_like(batch))
        loss = loss + 0.0 * self.dead(batch).float().mean() + faintness * self.faint(batch).float().mean()
        return loss + (1e-4 * self.coarse.float()).square().sum()


def troubled_layers(url: str) -> str:
    """A dead layer, a vanishing one, one that is near overflow (C29), and weights too coarse for updates (C72)."""
    model = Layers()
    parts, inputs = Parts.of(model), batches()
    with parts.watched(url) as scope:
        for step in range(UPDATES):
            with torch.autocast("cpu", dtype=torch.float16):
                # The first gradients say which format a layer is computed in.
                loss = model(inputs[step % 64], faintness=1.0 if step == 0 else 1e-9)
            parts.step(loss)
    return scope.run_id


def bad_loop(url: str) -> str:
    """Steps as large as the weights, one update in ten skipped, and at the end a loss that jumps, and is NaN."""
    parts, inputs = Parts.of(growth_interval=9), batches()
    parts.optimizer = Adam(parts.model.parameters(), lr=1.0)
    with parts.watched(url, every=50) as scope:
        for step in range(UPDATES):
            loss = torch.tanh(parts.model(inputs[step % 64])).square().mean()
            overflows = step >= 100 and (step % 10 == 0 or 600 <= step < 610)
            parts.optimizer.zero_grad()
            (parts.scaler.scale(loss) * (torch.inf if overflows else 1.0)).backward()
            parts.scaler.step(parts.optimizer)
            parts.scaler.update()
            jumps = 50.0 if 620 <= step < 624 else 1.0
            scope.log(loss=loss.detach() * (math.nan if step == UPDATES - 2 else jumps))
    return scope.run_id


@dataclass(frozen=True)
class Trouble:
    """A training, and the rules that it must make fire: each of them, and no other. With the layer, where one is."""

    train: Callable[[str], str]
    fires: dict[str, str | None]


def _of(train: Callable[[str], str], *rules: str, **culprits: str) -> Trouble:
    named = {name.replace("_", "-"): culprit for name, culprit in culprits.items()}
    return Trouble(train, dict.fromkeys(rules) | named)


TROUBLES = {
    trouble.train.__name__: trouble
    for trouble in (
        _of(nan_loss, "skip-streak", "scale-collapse", "scale-collapse-deep", "scale-zero", "loss-not-finite"),
        _of(pinned_scale, "no-step-applied", "skip-streak"),
        _of(remade_scaler, "scaler-recreated", "skip-streak"),
        _of(resumed_without_its_scaler, "resume-scale-mismatch"),
        # Each of its skips takes the scale further down, too, and four are enough to say that updates are lost.
        _of(rare_term, "skip-periodic", "scale-thrash", "scale-drift-down"),
        _of(sagging, "scale-drift-down", "scale-thrash"),
        _of(runaway, "scale-runaway"),
        _of(scaled_bf16, "scaler-useless"),
        _of(short_interval, "scale-thrash", "skip-rate"),
        _of(
            long_decline,
            "update-ratio-low",
            "unchanged-parameters",
            # Not even fp32 keeps updates that small.
            "absorbed-updates",
            "loss-not-falling",
            "exploding-gradients",
            underflow_rise="other.weight",
        ),
        _of(
            troubled_layers,
            zero_gradients="dead.weight",
            vanishing_gradients="faint.weight",
            unchanged_parameters="coarse",
            absorbed_updates="coarse",
            headroom_low="loud",
        ),
        # So many skips are a finding too, and so is a scaler in fp32.
        _of(
            bad_loop,
            "update-ratio-high",
            "skip-rate",
            "skip-streak",
            "loss-spike",
            "loss-not-finite",
            "scale-thrash",
            "scaler-useless",
        ),
    )
}
