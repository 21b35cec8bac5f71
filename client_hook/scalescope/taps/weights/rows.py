"""Which parameters a step is about to change, and how each of them is looked at."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from scalescope.taps.backward.gradients import local
from scalescope.taps.parameters import Parameters
from scalescope.taps.weights.intended import Intention, intention, likeness
from scalescope.taps.weights.looked import MOST, Look, looks

# In these an update can be intended and not be seen.
NARROW = (torch.float16, torch.bfloat16)
_STORED = (torch.float32, torch.float64, *NARROW)


@dataclass(frozen=True, slots=True)
class Row:
    """One parameter that is about to be stepped, and the group of the optimizer that it is in."""

    index: int
    parameter: torch.Tensor
    look: Look
    group: Mapping[str, Any]

    @property
    def device(self) -> torch.device:
        return local(self.parameter).device

    @property
    def is_narrow(self) -> bool:
        return self.parameter.dtype in NARROW

    @property
    def _is_held(self) -> bool:
        """Whether its group has a learning rate of 0: so are layers frozen, and that they stay tells nothing."""
        rate = self.group.get("lr")
        # Of one on a device nobody may ask.
        return isinstance(rate, int | float) and rate == 0

    def weights(self) -> torch.Tensor:
        """As they are now, those that are looked at, in any shape."""
        return self.look.within(self.parameter)

    def gradient(self) -> torch.Tensor | None:
        """The same of the gradient; None where nothing is to follow it, or it is sparse and has no places."""
        gradient = self.parameter.grad
        if gradient is None or local(gradient).layout is not torch.strided or self._is_held:
            return None
        return self.look.within(gradient)


class Aim(NamedTuple):
    """What is intended for the looked-at elements from ``start`` to ``end`` of a batch."""

    start: int
    end: int
    intention: Intention


class Batch(NamedTuple):
    """The rows of one device, and what is known to be intended for those in half precision."""

    rows: Sequence[Row]
    aims: Sequence[Aim]


def batches_of(
    optimizer: torch.optim.Optimizer, parameters: Parameters, known: Collection[int], *, closure: bool, most: int = MOST
) -> list[Batch]:
    """A batch for each device, of what this rank reports. Those without an index, or with one in ``known``, are not in.

    Args:
        closure: whether the step makes its own gradients, so that there need be none yet.
        most: elements looked at together, about.
    """
    found: dict[int, tuple[torch.Tensor, Mapping[str, Any]]] = {}
    reports = parameters.shares.reports
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            index = parameters.index(parameter)
            if index is not None and index not in known and reports(index) and _is_stepped(parameter, closure):
                found[index] = parameter, group
    chosen = looks([local(parameter) for parameter, _ in found.values()], most=most)
    alike: dict[torch.device, dict[Hashable, list[Row]]] = {}
    for (index, held), look in zip(found.items(), chosen, strict=True):
        row = Row(index, held[0], look, held[1])
        key = (id(row.group), likeness(optimizer, row.parameter)) if row.is_narrow else None
        alike.setdefault(row.device, {}).setdefault(key, []).append(row)
    return [_batch(optimizer, list(rows.values())) for rows in alike.values()]


def _batch(optimizer: torch.optim.Optimizer, alike: Sequence[Sequence[Row]]) -> Batch:
    aims, end = [], 0
    for rows in alike:
        start, end = end, end + sum(row.look.looked for row in rows)
        if rows[0].is_narrow:
            known = intention(optimizer, rows[0].group, [(row.parameter, row.look) for row in rows])
            aims += [] if known is None else [Aim(start, end, known)]
    return Batch([row for rows in alike for row in rows], aims)


def _is_stepped(parameter: torch.Tensor, closure: bool) -> bool:
    has_gradient = parameter.grad is not None or (closure and parameter.requires_grad)
    return has_gradient and parameter.dtype in _STORED and local(parameter).numel() > 0
