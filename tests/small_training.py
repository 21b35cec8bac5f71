"""A small training for the tests of the hook: a real model, optimizer and scaler, and a recorder in reach."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from scalescope import wire
from scalescope.recorder import Recorder
from scalescope.rows import column_arrays
from scalescope.taps.edge import Edge
from scalescope.taps.training import Training, TrainingTap
from torch import nn

torch.set_num_threads(1)

WIDTH = 8

# Name -> the optimizers that the hook must not disturb.
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adamw-fused": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True),
    "adamw-foreach": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True),
    # Without momentum: when its very first step is skipped, torch's fused SGD goes on with a momentum buffer that
    # was never written, so that not even two plain trainings agree.
    "sgd-fused": lambda model: torch.optim.SGD(model.parameters(), lr=1e-2, fused=True),
    "sgd-foreach": lambda model: torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, foreach=True),
}


class Chain(nn.Module):
    """Four layers. ``overflow_at`` makes the gradient of one layer's output too large for fp16, for one backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.overflow_at: int | None = None

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for place, layer in enumerate(self.layers):
            batch = torch.tanh(layer(batch))
            if place == self.overflow_at:
                batch.register_hook(_too_large)
        return batch


def _too_large(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * 1e30


def fp16() -> AbstractContextManager[object]:
    return torch.autocast("cpu", dtype=torch.float16)


def bf16() -> AbstractContextManager[object]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def fp32() -> AbstractContextManager[object]:
    return nullcontext()


@dataclass
class Course:
    """One training, seeded: the same course gives the same numbers, bit for bit."""

    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] = OPTIMIZERS["adamw-foreach"]
    precision: Callable[[], AbstractContextManager[object]] = fp16
    clip: bool = False
    scaler: torch.amp.GradScaler | None = None
    overflows: Collection[int] = ()
    overflow_at: int = 2
    losses: list[float] = field(default_factory=list)
    model: Chain = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    done: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = Chain()
        self.optimizer = self.make_optimizer(self.model)
        self.batches = torch.randn(512, 4, WIDTH)

    def backward(self) -> torch.Tensor:
        """One micro-batch; the loss, not scaled."""
        self.model.overflow_at = self.overflow_at if self.done in self.overflows else None
        with self.precision():
            loss: torch.Tensor = (self.model(self.batches[self.done % 512]).float() - 1).square().mean()
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        return loss

    def step(self) -> None:
        """What follows the last micro-batch of an update."""
        if self.scaler is None:
            self.optimizer.step()
        else:
            if self.clip:
                self.scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.done += 1

    def update(self) -> torch.Tensor:
        """One whole update of one micro-batch."""
        self.optimizer.zero_grad()
        loss = self.backward()
        self.step()
        self.losses.append(loss.item())
        return loss

    def run(self, updates: int) -> None:
        for _ in range(updates):
            self.update()

    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


@dataclass
class Watched:
    """Ears on a training without a link: what they heard is drained by the test."""

    recorder: Recorder
    edge: Edge
    tap: TrainingTap

    def log(self, **values: object) -> None:
        self.tap.log(values)

    def drain(self) -> list[wire.Record]:
        """Everything so far, and no tap may have failed."""
        assert self.edge.errors == 0
        return self.recorder.drain()

    def end(self) -> list[wire.Record]:
        """Everything, after the ears were taken off."""
        self.tap.remove()
        return self.drain()


@contextmanager
def watching(
    models: Sequence[nn.Module] | nn.Module,
    optimizers: Sequence[torch.optim.Optimizer] | torch.optim.Optimizer,
    scaler: torch.amp.GradScaler | None = None,
    *,
    every: int = 10,
    scheduler: object = None,
    histograms: Collection[str] = (),
) -> Iterator[Watched]:
    recorder, edge = Recorder(), Edge()
    training = Training(
        [models] if isinstance(models, nn.Module) else models,
        [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else optimizers,
        scaler,
        scheduler,
        histograms=histograms,
    )
    tap = TrainingTap(training, recorder, edge, every=every, clock=time.time)
    try:
        yield Watched(recorder, edge, tap)
    finally:
        tap.remove()


def columns(records: Sequence[wire.Record]) -> dict[str, dict[int, float]]:
    """Series name -> step -> value, of all batches of steps."""
    found: dict[str, dict[int, float]] = {}
    for record in records:
        if isinstance(record, wire.Steps):
            for name, packed in record.columns.items():
                rows, values = column_arrays(packed, record.count)
                found.setdefault(name, {}).update(zip((rows + record.first).tolist(), values.tolist(), strict=True))
    return found


def events(records: Sequence[wire.Record], kind: str) -> dict[int, dict[str, object]]:
    """Step -> data, of the events of one kind."""
    return {
        record.step: json.loads(record.data)
        for record in records
        if isinstance(record, wire.Event) and record.kind == kind
    }


def samples(records: Sequence[wire.Record]) -> dict[int, wire.Sample]:
    return {record.step: record for record in records if isinstance(record, wire.Sample)}


def steps(records: Sequence[wire.Record]) -> list[int]:
    """Every step that a row was recorded of, in order."""
    return [
        step
        for record in records
        if isinstance(record, wire.Steps)
        for step in range(record.first, record.first + record.count)
    ]


def windows(records: Sequence[wire.Record]) -> dict[int, dict[str, object]]:
    """Step -> the facts of its window."""
    told = (
        window.data
        for record in records
        if isinstance(record, wire.Steps)
        for window in record.windows
        for _ in range(window.count)
    )
    return dict(zip(steps(records), map(json.loads, told), strict=True))


def layouts(records: Sequence[wire.Record]) -> list[wire.Layout]:
    return [record for record in records if isinstance(record, wire.Layout)]
