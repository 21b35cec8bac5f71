"""A small GPT over characters: the model the demo trains."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

CONTEXT = 32
WIDTH = 64
LAYERS = 2
HEADS = 4


class Block(nn.Module):
    """Causal attention, then a feed-forward layer, each on the normalised input and added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.widen = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, time, WIDTH] to the same."""
        batch, time, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, time, WIDTH))
        changed: Tensor = x + self.narrow(functional.gelu(self.widen(self.norm2(x))))
        return changed


class CharacterGPT(nn.Module):
    """Predicts the next of ``characters`` different characters at each of up to CONTEXT places."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, characters, bias=False)

    def forward(self, indexes: Tensor) -> Tensor:
        """int64 [batch, time] to logits [batch, time, characters]."""
        x = self.characters(indexes) + self.places(torch.arange(indexes.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits
