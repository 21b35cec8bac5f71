"""Small models of the usual kinds, each with batches that it can learn: for trainings that nothing is wrong with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

WIDTH = 16
CLASSES = 8
# More words than any batch holds: most rows of an embedding get no gradient.
WORDS = 500
PLACES = 6

Loss = Callable[[Tensor, Tensor], Tensor]
Batch = Callable[[torch.Generator], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Task:
    """A model to train, and what it is to learn. The labels are noisy, so that no loss ends at zero."""

    model: nn.Module
    batch: Batch
    loss: Loss


def layers(rows: int = 16) -> Task:
    """Three layers with ReLU, normalisation and dropout."""
    model = nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.LayerNorm(2 * WIDTH), nn.Dropout(0.1), nn.Linear(2 * WIDTH, CLASSES)
    )
    return Task(model, _classified((WIDTH,), rows), cross_entropy)


def convolutions() -> Task:
    """The bias of a convolution before a BatchNorm has no effect, so its gradient is rounding noise."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8)
    )
    return Task(model, _classified((1, 8, 8), 8), cross_entropy)


def recurrent() -> Task:
    """The cells stay in fp32, as they do wherever they are to run for long."""
    return Task(Recurrent(), _sentences, cross_entropy)


def attention() -> Task:
    """The bias of keys has no effect on a softmax over keys, so its gradient is rounding noise."""
    return Task(Attention(), _sentences, cross_entropy)


def adapted() -> Task:
    """A frozen layer beside which two of low rank learn; the second begins at zero, so the first has no gradient."""
    return Task(Adapted(), _measured, mse_loss)


def alone() -> Task:
    """A single layer, one example at a time: as much noise as there is."""
    return Task(nn.Linear(WIDTH, 1), _measured_once, mse_loss)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.cells = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            states = self.cells(self.words(words))[0]
        told: Tensor = self.head(states[:, -1])
        return told


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.zeros(PLACES, WIDTH))
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        x = self.norm(self.words(words) + self.places)
        weights = torch.softmax(self.query(x) @ self.key(x).transpose(1, 2) * WIDTH**-0.5, dim=-1)
        told: Tensor = self.head(self.norm(x + weights @ self.value(x)).mean(dim=1))
        return told


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, 1).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, WIDTH) * WIDTH**-0.5)
        self.up = nn.Parameter(torch.zeros(1, 2))

    def forward(self, batch: Tensor) -> Tensor:
        told: Tensor = self.base(batch) + batch @ self.down.T @ self.up.T
        return told


def _classified(shape: tuple[int, ...], rows: int) -> Batch:
    """Classes by where the largest of the first values is, one in ten of them wrong."""

    def batch(draw: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(rows, *shape, generator=draw)
        return inputs, _partly_wrong(inputs.flatten(1)[:, :CLASSES].argmax(dim=1), draw)

    return batch


def _sentences(draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Frequent words are far more frequent than rare ones; the class is that of the last."""
    words = (WORDS * torch.rand(8, PLACES, generator=draw) ** 4).long()
    return words, _partly_wrong(words[:, -1] % CLASSES, draw)


def _partly_wrong(labels: Tensor, draw: torch.Generator) -> Tensor:
    wrong = torch.rand(labels.shape, generator=draw) < 0.1
    return torch.where(wrong, torch.randint(CLASSES, labels.shape, generator=draw), labels)


def _measured(draw: torch.Generator) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(16, WIDTH, generator=draw)
    return inputs, inputs.mean(dim=1, keepdim=True) + 0.1 * torch.randn(16, 1, generator=draw)


def _measured_once(draw: torch.Generator) -> tuple[Tensor, Tensor]:
    inputs, targets = _measured(draw)
    return inputs[:1], targets[:1]
