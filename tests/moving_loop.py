"""A small training whose updates go as they are told, one by one: whatever people write in a loop."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from tests.small_training import Watched


@dataclass(frozen=True)
class Move:
    """One update of a loop, as it may be written."""

    micro_batches: int = 1
    zero: str = "none"
    unscale: bool = False
    clip: str = ""
    overflow: bool = False
    logs: str = ""
    schedule: str = ""
    late: bool = False
    unscaled_before: bool = False
    between: bool = False
    twice: bool = False
    steps: bool = True
    outside: bool = False
    sets: bool = False
    closure: bool = False


PLAIN = Move()


@dataclass
class Loop:
    """A training that goes as it is told, seeded."""

    optimizers: int = 1
    scaled: bool = True
    growth_interval: int = 7
    watched: Watched | None = None
    model: nn.ModuleList = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        parts = [self.model] if self.optimizers == 1 else list(self.model)
        self.optimizer = [torch.optim.SGD(part.parameters(), lr=1e-3) for part in parts]
        self.scaler = torch.amp.GradScaler(
            "cpu", init_scale=8.0, growth_interval=self.growth_interval, enabled=self.scaled
        )
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer[0], 5)

    def update(self, move: Move) -> None:
        for optimizer in self.optimizer if move.zero in ("none", "place") else ():
            optimizer.zero_grad(set_to_none=move.zero == "none")
        if move.unscaled_before:
            torch.stack([layer(torch.randn(1, 3)).sum() for layer in self.model]).sum().backward()
        for _ in range(move.micro_batches):
            self.backward(move)
        self.log(move, "after backward")
        self.clip(move, "before")
        self.unscale(move)
        if move.late:
            self.backward(PLAIN)
        self.step(move)
        if move.between:
            self.backward(PLAIN)
        self.step_schedule(move, "before update")
        if move.unscale or move.clip == "after" or move.steps:
            self.scaler.update(*([4.0] if move.sets else []))
        self.step_schedule(move, "after update")
        self.log(move, "after update")

    def unscale(self, move: Move) -> None:
        for optimizer in self.optimizer if move.unscale or move.clip == "after" else ():
            self.scaler.unscale_(optimizer)
        self.clip(move, "after")

    def step(self, move: Move) -> None:
        for optimizer in self.optimizer:
            if move.steps:
                self.scaler.step(optimizer)
            if move.outside:
                optimizer.step()
            if move.closure:
                optimizer.step(lambda: self.backward(PLAIN))

    def backward(self, move: Move) -> torch.Tensor:
        x = torch.full((1, 3), float("inf")) if move.overflow else torch.randn(1, 3)
        loss = torch.stack([layer(x).sum() for layer in self.model]).sum()
        scaled = self.scaler.scale(loss)
        self.log(move, "before backward")
        if move.twice:
            scaled.backward(retain_graph=True)
        scaled.backward()
        return loss

    def clip(self, move: Move, place: str) -> None:
        if move.clip == place:
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.01)
        elif move.clip == "value" and place == "before":
            nn.utils.clip_grad_value_(self.model.parameters(), 0.01)

    def log(self, move: Move, place: str) -> None:
        if self.watched is not None and move.logs == place:
            self.watched.log(loss=1.0, tokens=3)

    def step_schedule(self, move: Move, place: str) -> None:
        if move.schedule == place:
            self.schedule.step()
