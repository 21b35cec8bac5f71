"""One update in both precisions: what the optimizer would make of either gradient, tried on a copy.

One parameter at a time is copied with its state, so that a large model needs no second optimizer in memory.
The copy has the same class, settings and state; nothing of the real one changes. The training's own gradient is
unscaled first as a scaler does, and the update keeps the parameter's format; the reference's is all fp32.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from scalescope.taps.parameters import Parameters
from scalescope.taps.probe.precision import HALVES

State = dict[str, Any]


class Side(NamedTuple):
    """A parameter after one update, and its optimizer's state of it."""

    weight: torch.Tensor
    state: State


def compare_updates(
    optimizers: Sequence[torch.optim.Optimizer],
    parameters: Parameters,
    own: Mapping[int, torch.Tensor],
    reference: Mapping[int, torch.Tensor],
    *,
    scale: float,
) -> dict[int, dict[str, float]]:
    """Index -> relative L2 differences of the training's own update from the reference's.

    ``weight``: of the new weight; ``update``: of its change; and one under the name of each moment, as the
    optimizer calls it. One whose reference is zero is left out, as are parameters that no optimizer holds.
    """
    found: dict[int, dict[str, float]] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                index = parameters.index(parameter)
                if index is not None and index in own and index in reference and index not in found:
                    sides = (
                        _updated(optimizer, group, parameter, own[index] * (1.0 / scale), wide=False),
                        _updated(optimizer, group, parameter, reference[index], wide=True),
                    )
                    found[index] = _differences(parameter.detach(), *sides)
    return found


def _updated(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    *,
    wide: bool,
) -> Side:
    """``parameter`` after one step of a copy of ``optimizer``; in fp32, with its state, where ``wide``."""
    weight = _copied(parameter, wide=wide).requires_grad_()
    weight.grad = gradient.to(weight.dtype)
    state = {name: _copied(kept, wide=wide) for name, kept in optimizer.state.get(parameter, {}).items()}
    twin: Any = type(optimizer).__new__(type(optimizer))
    twin.__setstate__(
        {
            "defaults": dict(optimizer.defaults),
            "state": defaultdict(dict, {weight: state} if state else {}),
            "param_groups": [{**group, "params": [weight]}],
        }
    )
    _unheard(type(twin).step)(twin)
    return Side(weight.detach(), twin.state[weight])


def _unheard(step: Any) -> Callable[[Any], object]:  # noqa: ANN401 - whatever an optimizer has for one
    """``step`` without what torch puts around it, which tells the hooks that a trainer has on all optimizers."""
    own: Callable[[Any], object] = step.__wrapped__ if getattr(step, "hooked", False) else step
    return own


def _copied(kept: Any, *, wide: bool) -> Any:  # noqa: ANN401 - whatever an optimizer keeps
    if not isinstance(kept, torch.Tensor):
        return kept
    found = kept.detach().clone()
    return found.float() if wide and found.dtype in HALVES else found


def _differences(before: torch.Tensor, own: Side, reference: Side) -> dict[str, float]:
    pairs = {
        "weight": (own.weight, reference.weight),
        "update": (own.weight.double() - before.double(), reference.weight.double() - before.double()),
    }
    pairs |= {
        name: (kept, reference.state[name])
        for name, kept in own.state.items()
        # A step counter is no moment.
        if isinstance(kept, torch.Tensor) and kept.shape == before.shape and kept.is_floating_point() and name != "step"
    }
    told = {name: _relative(*pair) for name, pair in pairs.items()}
    return {name: difference for name, difference in told.items() if difference is not None}


def _relative(own: torch.Tensor, reference: torch.Tensor) -> float | None:
    size = float(reference.double().norm())
    return float((own.double() - reference.double()).norm()) / size if size else None
