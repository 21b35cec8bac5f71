"""The text the demo learns: Python's own reference manual, which every installation carries for ``help()``."""

from __future__ import annotations

import torch
from torch import Tensor

from scalescope.demo.model import CONTEXT


class Corpus:
    """About 460,000 characters of English about Python, as indexes into the sorted set of its characters."""

    def __init__(self) -> None:
        # Typographic signs are too rare to learn.
        text = _manual().encode("ascii", "ignore").decode()
        letters = sorted(set(text))
        place = {letter: index for index, letter in enumerate(letters)}
        self.characters = len(letters)
        self._indexes = torch.tensor([place[letter] for letter in text])

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Inputs and targets, int64 [size, CONTEXT] each: random passages, and the same one character later."""
        starts = torch.randint(len(self._indexes) - CONTEXT, (size, 1), generator=generator)
        passages = self._indexes[starts + torch.arange(CONTEXT + 1)]
        return passages[:, :-1], passages[:, 1:]


def _manual() -> str:
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))
