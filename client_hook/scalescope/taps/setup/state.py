"""What the optimizers keep: the formats of their state, and what becomes of an eps in them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from scalescope.taps.loop import Loop


class OptimizerStates:
    """Reads the state of a loop's optimizers; anew only where one came or went, or an eps changed."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._seen: object = None
        self._told: list[dict[str, object]] = []

    def __call__(self) -> list[dict[str, object]]:
        """A row for each group of each optimizer.

        ``optimizer`` and ``group`` say which; ``dtypes`` has the formats of its state by name. With an ``eps``,
        ``eps_in_format`` is what it becomes in the format that changes it most (``eps_format``), of those of the
        state and of the parameters; ``eps_lost``: it becomes 0 there.
        """
        seen = [(len(each.state), [str(group.get("eps")) for group in each.param_groups]) for each in self._optimizers]
        if seen != self._seen:
            self._seen = seen
            self._told = [row for optimizer in self._optimizers for row in self._rows(optimizer)]
        return self._told

    @property
    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return self._loop.optimizers

    def _rows(self, optimizer: torch.optim.Optimizer) -> Iterator[dict[str, object]]:
        for number, group in enumerate(optimizer.param_groups):
            dtypes = _dtypes(optimizer.state, group)
            if dtypes:
                formats = {dtype for found in dtypes.values() for dtype in found}
                formats.update(parameter.dtype for parameter in group["params"])
                yield {
                    "optimizer": self._loop.name(optimizer),
                    "group": number,
                    "dtypes": {name: ", ".join(sorted(map(_name, found))) for name, found in dtypes.items()},
                    **_eps(group.get("eps"), formats),
                }


def _dtypes(state: Mapping[torch.Tensor, Mapping[str, Any]], group: Mapping[str, Any]) -> dict[str, set[torch.dtype]]:
    found: dict[str, set[torch.dtype]] = {}
    for parameter in group["params"]:
        for name, value in state.get(parameter, {}).items():
            if _is_moment(name, value):
                found.setdefault(name, set()).add(value.dtype)
    return found


def _is_moment(name: object, value: object) -> bool:
    """A count of steps has no part in an eps, and any format will do for it."""
    return isinstance(name, str) and name != "step" and isinstance(value, torch.Tensor) and value.is_floating_point()


def _eps(eps: object, formats: set[torch.dtype]) -> dict[str, object]:
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not math.isfinite(eps) or not formats:
        return {}
    exact = torch.tensor(float(eps), dtype=torch.float64, device="cpu")
    held = {dtype: float(exact.to(dtype).item()) for dtype in sorted(formats, key=str)}
    worst = max(held, key=lambda dtype: abs(held[dtype] - eps))
    told = {"eps": float(eps), "eps_in_format": held[worst], "eps_format": _name(worst)}
    return {**told, "eps_lost": bool(eps) and held[worst] == 0}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
