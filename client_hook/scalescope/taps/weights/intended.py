"""The update that a step intends, before the format of the weights rounds it away.

Of weights in half precision it cannot be seen in the weights. It is computed again from gradient and optimizer state
as they were before the step, in float64, for the optimizers whose rule is known: torch's SGD, Adam, AdamW and
Adagrad. Their for-loop, foreach, fused and capturable forms compute the same formula.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from scalescope.taps.backward.gradients import local
from scalescope.taps.weights.looked import Look

# A setting or a step count: on the host, or where it is known only to a device, a float64 tensor there.
Number = float | torch.Tensor


class Before(NamedTuple):
    """What a rule needs of parameters that are stepped alike, besides weights and gradients: as it was before.

    ``settings`` are those of their group; ``state`` holds the looked-at elements of each tensor of their state, under
    one another; ``steps`` counts the steps before this one: one number for all, or [looked].
    """

    settings: Mapping[str, Number]
    state: Mapping[str, torch.Tensor]
    steps: Number


Rule = Callable[[Before, torch.Tensor, torch.Tensor], torch.Tensor]


class Intention(NamedTuple):
    """The update of parameters that are stepped alike, to be computed once their gradients are there."""

    rule: Rule
    before: Before

    def of(self, weights: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Float64 [looked]: the update, from ``weights`` before the step and ``gradient``, both float64."""
        state = {name: copy.double() for name, copy in self.before.state.items()}
        gradient = -gradient if self.before.settings.get("maximize") else gradient
        return self.rule(self.before._replace(state=state), weights, gradient)


def likeness(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> Hashable:
    """Parameters of a group with the same answer are stepped alike."""
    state = optimizer.state.get(parameter, {})
    steps = state.get("step", 0)
    return (*_tensors(state), None if _is_away(steps) else float(steps))


def intention(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], alike: Sequence[tuple[torch.Tensor, Look]]
) -> Intention | None:
    """What ``optimizer`` is about to do to parameters of ``group``, at least one, that are stepped ``alike``.

    None where its rule is not known. What it needs is copied.
    """
    rule = _RULES.get(type(optimizer))
    if rule is None:
        return None
    device = local(alike[0][0]).device
    # A lookup alone: the state of an optimizer makes what is asked for and missing.
    states = [optimizer.state.get(parameter, {}) for parameter, _ in alike]
    copies = {
        name: torch.cat([look.at(state[name]) for state, (_, look) in zip(states, alike, strict=True)])
        for name in _tensors(states[0])
    }
    steps = _steps([state.get("step", 0) for state in states], [look for _, look in alike], device)
    return Intention(rule, Before(_settings(group, device), copies, steps))


def _steps(counts: Sequence[Any], chosen: Sequence[Look], device: torch.device) -> Number:
    """One number where it is the same for all by their likeness; else each parameter's own, float64 [looked]."""
    if not _is_away(counts[0]):
        return float(counts[0])
    own = [count.detach().to(device, torch.float64, non_blocking=True).reshape(1) for count in counts]
    return torch.cat([count.expand(look.looked) for count, look in zip(own, chosen, strict=True)])


def _tensors(state: Mapping[str, Any]) -> list[str]:
    return [name for name in _STATE if isinstance(state.get(name), torch.Tensor)]


def leaves_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the gradients are after a step as they were in it. torch's foreach SGD adds the momentum to them."""
    nesterov = any(group.get("nesterov") for group in optimizer.param_groups)
    return type(optimizer) in _RULES and not nesterov


def _settings(group: Mapping[str, Any], device: torch.device) -> dict[str, Number]:
    found = {name: _number(group[name], device) for name in _SETTINGS if group.get(name) is not None}
    for name, beta in zip(("beta1", "beta2"), group.get("betas", ()), strict=False):
        found[name] = _number(beta, device)
    return found


def _number(value: Any, device: torch.device) -> Number:  # noqa: ANN401 - a setting: whatever the user gave
    if not isinstance(value, torch.Tensor):
        return float(value)
    found = value.detach()
    # Learning rates are changed in place.
    return found.to(device, torch.float64, non_blocking=True, copy=True) if _is_away(found) else float(found)


def _is_away(value: object) -> bool:
    """Whether only a device knows the number."""
    return isinstance(value, torch.Tensor) and not value.is_cpu


def _sgd(before: Before, weights: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    of, buffer = before.settings, before.state.get("momentum_buffer")
    momentum = of["momentum"]
    direction = gradient + of["weight_decay"] * weights
    if isinstance(momentum, float) and not momentum:
        return -of["lr"] * direction
    velocity = direction if buffer is None else momentum * buffer + (1 - of["dampening"]) * direction
    return -of["lr"] * (direction + momentum * velocity if of["nesterov"] else velocity)


def _adam(before: Before, weights: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return _adaptive(before, gradient + before.settings["weight_decay"] * weights)


def _adamw(before: Before, weights: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    of = before.settings
    return _adaptive(before, gradient) - of["lr"] * of["weight_decay"] * weights


def _adam_or_adamw(before: Before, weights: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Newer torch has AdamW as an Adam whose group says so."""
    decoupled = before.settings.get("decoupled_weight_decay")
    return _adamw(before, weights, gradient) if decoupled else _adam(before, weights, gradient)


def _adaptive(before: Before, gradient: torch.Tensor) -> torch.Tensor:
    of, state, steps = before.settings, before.state, before.steps + 1
    beta1, beta2 = of["beta1"], of["beta2"]
    first = beta1 * state.get("exp_avg", torch.zeros_like(gradient)) + (1 - beta1) * gradient
    second = beta2 * state.get("exp_avg_sq", torch.zeros_like(gradient)) + (1 - beta2) * gradient.square()
    if of.get("amsgrad"):
        second = torch.maximum(second, state.get("max_exp_avg_sq", torch.zeros_like(gradient)))
    correction1, correction2 = 1 - beta1**steps, 1 - beta2**steps
    return -of["lr"] / correction1 * first / ((second / correction2).sqrt() + of["eps"])


def _adagrad(before: Before, weights: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    of = before.settings
    direction = gradient + of["weight_decay"] * weights
    total = before.state.get("sum", torch.zeros_like(gradient)) + direction.square()
    return -of["lr"] / (1 + before.steps * of["lr_decay"]) * direction / (total.sqrt() + of["eps"])


_STATE = ("momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "sum")
_SETTINGS = (
    "lr",
    "momentum",
    "dampening",
    "weight_decay",
    "nesterov",
    "maximize",
    "eps",
    "amsgrad",
    "lr_decay",
    "decoupled_weight_decay",
)
# By the class itself: a subclass may follow a rule of its own.
_RULES: dict[type[torch.optim.Optimizer], Rule] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam_or_adamw,
    torch.optim.AdamW: _adamw,
    torch.optim.Adagrad: _adagrad,
}
