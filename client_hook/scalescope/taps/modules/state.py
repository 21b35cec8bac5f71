"""What a model carries from update to update, looked at once when there is trouble: its parameters and buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from scalescope.numerics.extremes import Extremes, below_infinity, extremes
from scalescope.taps.modules.heard import Entry, Heard, Where
from scalescope.taps.modules.outputs import values_of
from scalescope.taps.naming import plain, prefixes, unwrapped


class State:
    """Parameters and buffers as they stood at one moment: their names, and an entry for each."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.names: list[str] = []
        entries = []
        for where, name, tensor in _carried(models):
            values = values_of(tensor)
            if values is not None and values.is_floating_point():
                entries.append(Entry(where, len(self.names), values.numel(), _looked_at(where, values)))
                self.names.append(name)
        self.heard = Heard(entries)


def _carried(models: Sequence[nn.Module]) -> Iterator[tuple[Where, str, torch.Tensor]]:
    for model, prefix in zip(models, prefixes(models), strict=True):
        author_s = unwrapped(model)
        for name, tensor in author_s.named_buffers():
            yield "buffer", prefix + plain(name), tensor
        for name, tensor in author_s.named_parameters():
            yield "parameter", prefix + plain(name), tensor


def _looked_at(where: Where, values: torch.Tensor) -> Extremes:
    return extremes(values) if where == "parameter" else Extremes(0.0, below_infinity(values))
