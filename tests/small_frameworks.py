"""A small training for the frameworks' tests: what a framework trains, and what is compared of it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import torch
from torch import nn
from torch.utils.data import Dataset

from tests.small_training import WIDTH, Chain

# Backward passes whose gradient overflows fp16.
POISONED = frozenset({2, 5})


class Learner(nn.Module):
    """Gives the loss of a batch. The backward passes in ``poisoned``, counted from 0, overflow at the third layer."""

    def __init__(self, poisoned: Collection[int] = ()) -> None:
        super().__init__()
        self.chain = Chain()
        self.poisoned = poisoned
        self.passes = 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        learns = torch.is_grad_enabled() and self.training
        self.chain.overflow_at = 2 if learns and self.passes in self.poisoned else None
        self.passes += learns
        loss: torch.Tensor = (self.chain(batch).float() - batch.roll(1, dims=1)).square().mean()
        return loss


class Batches(Dataset[torch.Tensor]):
    """``count`` seeded rows."""

    def __init__(self, count: int = 64) -> None:
        self.rows = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(7))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> torch.Tensor:
        return self.rows[place]


def scaler_of(scale: float = 1024.0) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale)


def fingerprint(*modules: nn.Module) -> str:
    """Of every bit of the parameters and buffers."""
    digest = hashlib.sha256()
    for module in modules:
        for name, tensor in module.state_dict().items():
            digest.update(name.encode() + tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
