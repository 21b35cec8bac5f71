"""Which parameters a step is about to change, and how each of them is looked at."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch

from scalescope.taps.gradients import local
from scalescope.taps.intended import Intention, intention
from scalescope.taps.parameters import Parameters
from scalescope.taps.weights_looked import Look, looks

# In these an update can be intended and not be seen.
NARROW = (torch.float16, torch.bfloat16)
_STORED = (torch.float32, torch.float64, *NARROW)


@dataclass(frozen=True, slots=True)
class Row:
    """One parameter that is about to be stepped. ``intention`` is what is known of the step, None for nothing."""

    index: int
    parameter: torch.Tensor
    look: Look
    intention: Intention | None

    @property
    def device(self) -> torch.device:
        return local(self.parameter).device

    @property
    def is_narrow(self) -> bool:
        return self.parameter.dtype in NARROW

    def gradient(self) -> torch.Tensor | None:
        """[looked]; None where there is none, or a sparse one, which has no places."""
        gradient = self.parameter.grad
        if gradient is None or local(gradient).layout is not torch.strided:
            return None
        return self.look.at(gradient)


def rows_of(
    optimizer: torch.optim.Optimizer, parameters: Parameters, known: Collection[int], *, closure: bool
) -> list[list[Row]]:
    """The rows of each device. Parameters without an index, or whose index is ``known`` already, are left out.

    Args:
        closure: whether the step makes its own gradients, so that there need be none yet.
    """
    found: dict[int, tuple[torch.Tensor, dict[str, Any]]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            index = parameters.index(parameter)
            if index is not None and index not in known and _is_stepped(parameter, closure):
                found[index] = parameter, group
    chosen = looks([local(parameter) for parameter, _ in found.values()])
    rows: dict[torch.device, list[Row]] = {}
    for (index, (parameter, group)), look in zip(found.items(), chosen, strict=True):
        known_step = intention(optimizer, group, parameter, look) if parameter.dtype in NARROW else None
        row = Row(index, parameter, look, known_step)
        rows.setdefault(row.device, []).append(row)
    return list(rows.values())


def _is_stepped(parameter: torch.Tensor, closure: bool) -> bool:
    has_gradient = parameter.grad is not None or (closure and parameter.requires_grad)
    return has_gradient and parameter.dtype in _STORED and local(parameter).numel() > 0
