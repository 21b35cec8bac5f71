"""An independent account of what a model's modules answer and get back, and what was told of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scalescope import wire
from scalescope.rows import tallied
from torch import nn

from tests.small_training import watching

COLUMNS = ("amax", "nonfinite", "numel")

Numbers = dict[str, float]


def tallies(records: Sequence[wire.Record]) -> dict[int, dict[str, Numbers]]:
    """Step -> module -> column -> value, what is not known left out."""
    layout = next(record for record in reversed(records) if isinstance(record, wire.Layout))
    found: dict[int, dict[str, Numbers]] = {}
    for record in records:
        if isinstance(record, wire.Tally) and record.subject == "module":
            indexes, columns = tallied(record)
            found[record.step] = {
                layout.modules[index].name: {
                    name: float(values[row]) for name, values in columns.items() if not np.isnan(values[row])
                }
                for row, index in enumerate(indexes)
            }
    return found


def reasons(records: Sequence[wire.Record]) -> dict[int, str]:
    """Step -> why its modules were heard."""
    return {
        record.step: record.reason
        for record in records
        if isinstance(record, wire.Tally) and record.subject == "module"
    }


def trained(
    model: nn.Module, loss: Callable[[], torch.Tensor], *, updates: int = 1, every: int = 1
) -> list[wire.Record]:
    """What is told of a few updates of ``model``, in which no tap failed."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(model, optimizer, every=every) as watched:
        for _ in range(updates):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        return watched.end()


def no_hooks(model: nn.Module) -> bool:
    return not any(
        getattr(module, kind)
        for module in model.modules()
        for kind in (
            "_forward_hooks",
            "_forward_hooks_with_kwargs",
            "_forward_hooks_always_called",
            "_forward_pre_hooks",
            "_forward_pre_hooks_with_kwargs",
            "_backward_hooks",
            "_backward_pre_hooks",
        )
    )


@dataclass
class Account:
    """Keeps every output and every gradient of an output, as float64 arrays, through hooks of its own."""

    model: nn.Module
    tensors: Callable[[object], list[torch.Tensor]] = field(default_factory=lambda: _alone)
    outputs: dict[str, list[NDArray[np.float64]]] = field(default_factory=dict)
    gradients: dict[str, list[NDArray[np.float64]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, module in self.model.named_modules():
            module.register_forward_hook(self._keep(name))

    def numbers(self) -> dict[str, Numbers]:
        """What should be told of everything since the last call: module -> column -> value."""
        found: dict[str, Numbers] = {}
        for prefix, kept in (("forward", self.outputs), ("grad_output", self.gradients)):
            for name, arrays in kept.items():
                whole = np.concatenate([array.ravel() for array in arrays])
                finite = whole[np.isfinite(whole)]
                values = (np.abs(finite).max(initial=0.0), whole.size - finite.size, whole.size)
                found.setdefault(name, {}).update(
                    {f"{prefix}_{column}": float(value) for column, value in zip(COLUMNS, values, strict=True)}
                )
            kept.clear()
        return found

    def _keep(self, name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(_module: nn.Module, _arguments: object, answer: object) -> None:
            for tensor in self.tensors(answer):
                self.outputs.setdefault(name, []).append(_array(tensor))
                if tensor.requires_grad:
                    tensor.register_hook(self._keep_gradient(name))

        return hook

    def _keep_gradient(self, name: str) -> Callable[[torch.Tensor], None]:
        def hook(gradient: torch.Tensor) -> None:
            self.gradients.setdefault(name, []).append(_array(gradient))

        return hook


def _alone(answer: object) -> list[torch.Tensor]:
    return [answer] if isinstance(answer, torch.Tensor) else []


def _array(tensor: torch.Tensor) -> NDArray[np.float64]:
    found: NDArray[np.float64] = tensor.detach().double().numpy().copy()
    return found
