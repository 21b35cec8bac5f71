"""Two real trainings, one update at a time: the demo's, and a GPT of 28 million parameters.

Both are mixed precision with a loss scaler and clipping, on AdamW. Trainings made with the same seed go the same
way bit for bit, watched or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from scalescope.demo.model import CharacterGPT
from scalescope.demo.text import Corpus
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.utils import clip_grad_norm_

from benchmarks.gradients import CONTEXT, LAYERS, TOKENS, WIDTH

HEADS = 6
# Overflows nowhere in either training: a skip would be another update than those that are compared.
SCALE = 2.0**10


class Log(Protocol):
    def __call__(self, **values: object) -> None: ...


class Training:
    """A loop as people write it. ``log`` takes an update's values, None logs nothing; ``losses`` has all of them."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: Callable[[], tuple[Tensor, Tensor]],
        device: str = "cpu",
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.device = device
        self.scaler = torch.amp.GradScaler(device, init_scale=SCALE, growth_interval=10**9)
        self.log: Log | None = None
        self.losses: list[Tensor] = []
        self._batch = batch

    def update(self) -> None:
        inputs, targets = self._batch()
        with torch.autocast(self.device, dtype=torch.float16):
            loss = cross_entropy(self.model(inputs).flatten(0, 1).float(), targets.flatten())
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.log is not None:
            self.log(loss=loss, tokens=inputs.numel())
        self.losses.append(loss.detach())


def characters(seed: int = 1) -> Training:
    """The demo's model on the demo's text."""
    torch.manual_seed(seed)
    corpus = Corpus()
    drawn = torch.Generator().manual_seed(seed)
    model = CharacterGPT(corpus.characters)
    return Training(model, torch.optim.AdamW(model.parameters(), lr=3e-3), lambda: corpus.batch(32, drawn))


def gpt(seed: int = 1, *, rows: int = 1, tokens: int = 256, fused: bool = False, device: str = "cpu") -> Training:
    """The model whose gradients are in :mod:`benchmarks.gradients`, on ``rows`` times ``tokens`` random tokens."""
    torch.manual_seed(seed)
    drawn = torch.Generator().manual_seed(seed)
    model = GPT().to(device)

    def batch() -> tuple[Tensor, Tensor]:
        text = torch.randint(TOKENS, (rows, tokens + 1), generator=drawn).to(device)
        return text[:, :-1], text[:, 1:]

    return Training(model, torch.optim.AdamW(model.parameters(), lr=3e-4, fused=fused), batch, device)


class Block(nn.Module):
    """Causal attention, then a feed-forward layer, each on the normalised input and added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, _ = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(batch, time, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, time, WIDTH))
        changed: Tensor = x + self.out(gelu(self.fc(self.ln_2(x))))
        return changed


class GPT(nn.Module):
    """148 tensors, 27.98 million parameters; the head is the token embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(TOKENS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        nn.init.normal_(self.wte.weight, std=0.02)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return nn.functional.linear(self.ln_f(x), self.wte.weight)
