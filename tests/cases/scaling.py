"""What a loss scaler goes through, in loops that people reported or that do nothing wrong.

As in ``loops``: each takes the server's address, is watched, and answers with its scope, closed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import scalescope
import torch
from torch import nn
from torch.amp import GradScaler

from tests.cases.loops import Case, half, linear

Loss = Callable[[int], torch.Tensor]


def trained(
    url: str, model: nn.Module, scaler: GradScaler, updates: int, loss_at: Loss, *, rate: float = 1e-4
) -> scalescope.Scope:
    """The usual loop: so many updates of plain SGD on ``loss_at(step)``."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with scalescope.watch(model, optimizer, scaler, url=url) as scope:
        for step in range(updates):
            optimizer.zero_grad()
            scaler.scale(loss_at(step)).backward()
            scaler.step(optimizer)
            scaler.update()
    return scope


def answer(model: nn.Module, given: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(given)
    return found


def summed(model: nn.Module, rows: int = 8, *, factor: float = 1.0) -> Loss:
    """The sum of what a linear model makes of random rows, in fp16."""
    width = next(model.parameters()).shape[-1]

    def loss_at(_: int) -> torch.Tensor:
        with half():
            return answer(model, torch.randn(rows, width)).sum() * factor

    return loss_at


def nan_loss(url: str) -> scalescope.Scope:
    """apex#834: the loss is NaN, and the scale is halved until it is 0."""
    model = linear(4, 4)
    return trained(url, model, GradScaler("cpu"), 200, summed(model, factor=math.nan))


def nan_loss_seen_seldom(url: str) -> scalescope.Scope:
    """pytorch#157436: 91 skips between two lines of the log look like one jump."""
    model, broken = linear(4, 4), 60
    loss_at, scaler = summed(model, factor=1e-3), GradScaler("cpu", init_scale=2.0**17)
    return trained(url, model, scaler, broken + 91, lambda step: loss_at(step) * (math.nan if step >= broken else 1.0))


def zero_scale(url: str) -> scalescope.Scope:
    """insightface#2262: one NaN batch beside a scale that cannot be halved, and clean batches from there on."""
    model = linear(4, 4)
    loss_at = summed(model)
    scaler = GradScaler("cpu", init_scale=1e-45)
    return trained(url, model, scaler, 30, lambda step: loss_at(step) * (math.nan if step == 0 else 1.0))


def diverging(url: str) -> scalescope.Scope:
    """fairseq#1529: the learning rate is far too large, and the scale is only the messenger."""
    model = linear(8, 1)
    rows, wanted = torch.randn(16, 8), torch.randn(16, 1)

    def loss_at(_: int) -> torch.Tensor:
        with half():
            return nn.functional.mse_loss(model(rows), wanted)

    return trained(url, model, GradScaler("cpu", init_scale=2.0**8), 30, loss_at, rate=50.0)


def summed_at_the_start(url: str) -> scalescope.Scope:
    """pytorch#111739: a summed loss times 65536 is beyond fp16, for a few updates."""
    model = linear(2, 2)
    return trained(url, model, GradScaler("cpu"), 40, summed(model, rows=2))


def probing(url: str) -> scalescope.Scope:
    """VMamba#252: now and then a doubling is too much, and the scale comes back."""
    model = linear(16, 16)
    return trained(url, model, GradScaler("cpu", growth_interval=200), 700, summed(model))


def one_batch(url: str) -> scalescope.Scope:
    """pytorch-lightning#20215: a test trains one batch and finds the weights as they were."""
    model = linear(2, 2)
    return trained(url, model, GradScaler("cpu"), 1, summed(model, rows=2))


def scaler_in_the_loop(url: str) -> scalescope.Scope:
    """A GradScaler made in the loop begins at 65536 each time, which a summed loss never fits."""
    model = linear(4, 4)
    loss_at, optimizer = summed(model), torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = GradScaler("cpu")
    with scalescope.watch(model, optimizer, scaler, url=url) as scope:
        for step in range(20):
            optimizer.zero_grad()
            scaler = scaler if step == 0 else GradScaler("cpu")
            scaler.scale(loss_at(step)).backward()
            scaler.step(optimizer)
            scaler.update()
    return scope


def sawtooth(url: str) -> scalescope.Scope:
    """DeepSpeed#931: each doubling is rejected at once."""
    model = linear(64, 64)
    scaler = GradScaler("cpu", init_scale=2.0**14, growth_interval=5)
    return trained(url, model, scaler, 60, summed(model), rate=0.0)


def short_interval(url: str) -> scalescope.Scope:
    """metaseq: with a growth interval of 20 one update in twenty is lost, for ever."""
    model = linear(16, 16)
    return trained(url, model, GradScaler("cpu", growth_interval=20), 250, summed(model))


def zero_gradients(url: str) -> scalescope.Scope:
    """pytorch#98828: nothing ever overflows, and the scale doubles up to 2^127."""
    model = linear(4, 4)
    rows = torch.randn(8, 4)
    return trained(url, model, GradScaler("cpu", growth_interval=1), 80, lambda _: answer(model, rows).sum() * 0.0)


def tiny_loss_in_fp32(url: str) -> scalescope.Scope:
    """The same of a model that runs in fp32, with a loss next to nothing."""
    model = linear(4, 4)
    rows = torch.randn(8, 4)
    return trained(
        url, model, GradScaler("cpu", growth_interval=1), 80, lambda _: answer(model, rows).square().sum() * 1e-30
    )


def scaler_under_bf16(url: str) -> scalescope.Scope:
    """accelerate#1036: a scaler is made whatever the format, and bf16 needs none."""
    model = linear(16, 16)

    def loss_at(_: int) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return answer(model, torch.randn(8, 16)).square().mean()

    return trained(url, model, GradScaler("cpu", growth_interval=5), 260, loss_at)


def scaler_of_bf16_weights(url: str) -> scalescope.Scope:
    """The same with weights that are bf16 themselves, which the scaler accepts on the CPU."""
    model = linear(16, 16).to(torch.bfloat16)
    rows = torch.randn(8, 16, dtype=torch.bfloat16)
    return trained(
        url, model, GradScaler("cpu", growth_interval=5), 60, lambda _: answer(model, rows).float().square().mean()
    )


def scheduler_before_the_optimizer(url: str) -> scalescope.Scope:
    """pytorch#44511: the first update is skipped, and torch warns about the scheduler."""
    model, scaler = linear(4, 4), GradScaler("cpu")
    loss_at, optimizer = summed(model), torch.optim.SGD(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    with scalescope.watch(model, optimizer, scaler, url=url) as scope:
        for step in range(6):
            optimizer.zero_grad()
            scaler.scale(loss_at(step)).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
    return scope


def moved_while_loading(url: str) -> scalescope.Scope:
    """accelerate#4289: to load the checkpoint steps the optimizer once, which doubles the scale that was loaded."""
    model, scaler = linear(4, 4), GradScaler("cpu", init_scale=4096.0)
    first = trained(url, model, scaler, 30, summed(model, factor=1e-3))
    saved = scaler.state_dict() | {"growth_interval": 1, "_growth_tracker": 0}
    loaded = GradScaler("cpu")
    loaded.load_state_dict(saved)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loaded.scale(model(torch.zeros(1, 4)).sum()).backward()
    loaded.step(optimizer)
    loaded.update()
    loss_at = summed(model, factor=1e-3)
    with scalescope.watch(model, optimizer, loaded, url=url, run=first.run_id) as scope:
        for step in range(3):
            optimizer.zero_grad()
            loaded.scale(loss_at(step)).backward()
            loaded.step(optimizer)
            loaded.update(loaded.get_scale())
    return scope


def resumed_well(url: str) -> scalescope.Scope:
    """The scaler's state comes with the checkpoint."""
    model, scaler = linear(4, 4), GradScaler("cpu", growth_interval=20)
    loss_at = summed(model)
    first = trained(url, model, scaler, 60, loss_at)
    loaded = GradScaler("cpu", growth_interval=20)
    loaded.load_state_dict(scaler.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with scalescope.watch(model, optimizer, loaded, url=url, run=first.run_id) as scope:
        for step in range(20):
            optimizer.zero_grad()
            loaded.scale(loss_at(step)).backward()
            loaded.step(optimizer)
            loaded.update()
    return scope


def penalty_now_and_then(url: str) -> scalescope.Scope:
    """A regulariser that runs every 16th update and is beyond fp16 each time."""
    model = linear(16, 16)
    loss_at = summed(model, factor=1e-3)

    def with_penalty(step: int) -> torch.Tensor:
        return loss_at(step) * (1e9 if step % 16 == 3 else 1.0)

    return trained(url, model, GradScaler("cpu", growth_interval=5), 200, with_penalty)


def gradients_that_grow(url: str) -> scalescope.Scope:
    """fairseq#515: the scale sags over hundreds of updates."""
    model = linear(16, 16)
    loss_at = summed(model)

    def growing(step: int) -> torch.Tensor:
        return loss_at(step) * math.exp2(step / 40 + step % 7 / 14)

    return trained(url, model, GradScaler("cpu", growth_interval=100), 400, growing, rate=0.0)


class Adapter(nn.Module):
    """LoRA's: what is added begins as zero, and so does the gradient of its first half."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 4, bias=False)
        self.second = nn.Linear(4, 16, bias=False)
        nn.init.zeros_(self.second.weight)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given + answer(self.second, answer(self.first, given))


def adapter(url: str) -> scalescope.Scope:
    """LoRA#59: half of the gradients are zero at first, and are meant to be."""
    torch.manual_seed(0)
    model = Adapter()
    rows, wanted = torch.randn(8, 16), torch.randn(8, 16)

    def loss_at(_: int) -> torch.Tensor:
        with half():
            return nn.functional.mse_loss(model(rows).float(), wanted)

    return trained(url, model, GradScaler("cpu"), 60, loss_at, rate=0.1)


class Sparse(nn.Module):
    """Rows that no batch asks for, and units that never wake."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(1000, 8)
        self.asleep = nn.Linear(8, 8)
        nn.init.constant_(self.asleep.bias, -100.0)
        self.head = nn.Linear(8, 1)

    def forward(self, indexes: torch.Tensor) -> torch.Tensor:
        found = answer(self.rows, indexes)
        return answer(self.head, found + torch.relu(self.asleep(found)))


def structural_zeros(url: str) -> scalescope.Scope:
    """LoRA#167: nearly all gradients are zero in any format."""
    torch.manual_seed(0)
    model = Sparse()

    def loss_at(_: int) -> torch.Tensor:
        with half():
            return answer(model, torch.arange(10)).square().mean()

    return trained(url, model, GradScaler("cpu"), 60, loss_at)


# The case's number -> its loop and the finding that is to come first.
TROUBLES: dict[str, tuple[Case, str]] = {
    "C01": (nan_loss, "SCALE_COLLAPSE"),
    "C02": (zero_scale, "SCALE_ZERO"),
    "C03": (diverging, "SCALE_COLLAPSE"),
    "C14": (one_batch, "NO_STEP_APPLIED"),
    "C16": (scaler_in_the_loop, "SCALER_RECREATED"),
    "C17": (sawtooth, "SCALE_THRASH"),
    "C18": (short_interval, "SCALE_THRASH"),
    "C21, zero": (zero_gradients, "SCALE_RUNAWAY"),
    "C21, fp32": (tiny_loss_in_fp32, "SCALE_RUNAWAY"),
    "C22, autocast": (scaler_under_bf16, "SCALER_USELESS"),
    "C22, weights": (scaler_of_bf16_weights, "SCALER_USELESS"),
    "C64": (moved_while_loading, "RESUME_SCALE_MISMATCH"),
    "C106": (nan_loss_seen_seldom, "SCALE_COLLAPSE"),
    "rhythm": (penalty_now_and_then, "SKIP_PERIODIC"),
    "drift": (gradients_that_grow, "SCALE_DRIFT_DOWN"),
}
# At most info may be found of these.
SILENT: dict[str, Case] = {
    "C11": summed_at_the_start,
    "C12": probing,
    "C14": one_batch,
    "C55": scheduler_before_the_optimizer,
    "C84": adapter,
    "C85": structural_zeros,
    "resumed": resumed_well,
}
