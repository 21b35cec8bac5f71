"""The truth about a loop, counted beside it by plain arithmetic on what torch itself shows.

Nothing here knows the hook. At the point where an update's gradients are complete, and nobody has unscaled or
clipped them yet, they are copied, and ``isfinite`` says whether the update has to be skipped; the scaler's own
getters say the scale; a hook of our own on every parameter says whose gradient turned non-finite first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.amp import GradScaler

Optimizers = Sequence[torch.optim.Optimizer]


@dataclass
class Counted:
    """What one update was.

    Attributes:
        gradients: by optimizer, then by parameter: as they stood, scaled and not clipped, dense, flat.
        before, after: the parameters that had a gradient, flat, float64; when that was complete, and at the end.
        micro_batches: the backward passes in each optimizer's gradients; None where nobody can tell.
        culprit: the parameter whose gradient was non-finite first, in the order in which they were produced.
        fused: the optimizers that decide inside their kernel whether to skip.
        facts: what the loop knows of its window, by the names of the facts.
    """

    gradients: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    micro_batches: dict[str, int | None] = field(default_factory=dict)
    before: dict[str, torch.Tensor] = field(default_factory=dict)
    after: dict[str, torch.Tensor] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)
    scale: float | None = None
    next_scale: float | None = None
    tracker: int | None = None
    rate: float = 0.0
    loss: float | None = None
    culprit: str | None = None
    was_set: bool = False
    fused: list[str] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)

    @property
    def overflowed(self) -> list[str]:
        """The optimizers that the scaler must have refused to step."""
        if self.scale is None:
            return []
        return [name for name, found in self.gradients.items() if any(map(nonfinite, found.values()))]

    @property
    def skipped(self) -> bool:
        return bool(self.overflowed or self.idle)

    def nonfinite(self) -> dict[str, int]:
        """Parameter -> its non-finite values, of the optimizers that were refused."""
        found = {name: nonfinite(grad) for owner in self.overflowed for name, grad in self.gradients[owner].items()}
        return {name: count for name, count in found.items() if count}


@dataclass
class Count:
    """The truth about a loop.

    Attributes:
        set: step -> the scale before and after, where the trainer set it.
        formats: the compute formats that the loop knows.
        unnamed: a word of the reason where no culprit can be named.
        replica: another rank reports the gradients, which are the same on all.
        untold: parameters of which nobody can tell which gradients their update came from.
    """

    names: dict[int, str]
    order: list[str]
    updates: list[Counted] = field(default_factory=list)
    set: dict[int, tuple[float, float]] = field(default_factory=dict)
    formats: dict[str, str] = field(default_factory=dict)
    unnamed: str = ""
    replica: bool = False
    untold: list[str] = field(default_factory=list)


class Counter:
    """Counts one watched training. ``names`` are those that the model's author gave."""

    def __init__(self, models: Mapping[str, nn.Module], optimizers: Optimizers, scaler: GradScaler | None) -> None:
        self._models = models
        self._optimizers = list(optimizers)
        self._scaler = scaler
        self._culprit: str | None = None
        # The scale as the last update, or the trainer, left it.
        self._left: float | None = None
        # In the order of their gradients: what was finite on this rank may be reduced to what is not.
        self._produced: dict[str, None] = {}
        self._heard: set[int] = set()
        self._open = Counted()
        self.count = Count({}, optimizer_names(optimizers))
        self._listen()

    def complete(self, optimizer: torch.optim.Optimizer, micro_batches: int | None) -> None:
        """The gradients of ``optimizer`` are complete: scaled, not clipped."""
        self._listen()
        update, name = self._open, self.count.order[self._optimizers.index(optimizer)]
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        update.gradients[name] = {
            self.count.names[id(parameter)]: _flat(parameter.grad) for parameter in held if parameter.grad is not None
        }
        update.micro_batches[name] = micro_batches
        update.before |= self._weights(held)
        if optimizer.defaults.get("fused"):
            update.fused.append(name)
        update.rate = float(self._optimizers[0].param_groups[0]["lr"])
        if self._scaler is not None and update.scale is None:
            update.scale = self._scaler.get_scale()
            update.tracker = self._scaler.state_dict()["_growth_tracker"]
            if self._left is not None and self._left != update.scale:
                self.count.set[len(self.count.updates)] = (self._left, update.scale)

    def idle(self, optimizer: torch.optim.Optimizer) -> None:
        """``optimizer`` was unscaled and is never stepped."""
        self._open.idle.append(self.count.order[self._optimizers.index(optimizer)])

    def replaced(self, scaler: GradScaler) -> None:
        """Another scaler takes over, in the update under way."""
        self._scaler = scaler
        self.fact("scaler_recreated", True)

    def fact(self, name: str, value: object) -> None:
        self._open.facts[name] = value

    def done(self, loss: torch.Tensor | None, *, was_set: bool) -> None:
        """The update under way is over."""
        update, self._open = self._open, Counted()
        held = [p for optimizer in self._optimizers for group in optimizer.param_groups for p in group["params"]]
        update.after = {name: value for name, value in self._weights(held).items() if name in update.before}
        update.loss = None if loss is None else float(loss.detach())
        spread = update.nonfinite()
        update.culprit = self._culprit or next((name for name in self._produced if name in spread), None)
        self._culprit = None
        update.was_set = was_set
        if self._scaler is not None:
            update.next_scale = self._left = self._scaler.get_scale()
        self.count.updates.append(update)

    def scale_set(self, before: float, after: float) -> None:
        """The trainer set the scale after the update that closed last."""
        self.count.set[max(len(self.count.updates) - 1, 0)] = (before, after)
        self._left = after

    def _weights(self, held: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {self.count.names[id(parameter)]: _flat(parameter).double() for parameter in held}

    def _listen(self) -> None:
        """Hear every parameter that a model or an optimizer has by now."""
        for prefix, model in self._models.items():
            for name, parameter in model.named_parameters():
                self._hear(prefix + name, parameter)
        for number, optimizer in enumerate(self._optimizers):
            for group, settings in enumerate(optimizer.param_groups):
                for place, parameter in enumerate(settings["params"]):
                    self._hear(f"optimizer{number}.{group}.{place}", parameter)

    def _hear(self, name: str, parameter: torch.Tensor) -> None:
        self.count.names.setdefault(id(parameter), name)
        if parameter.requires_grad and parameter.is_leaf and id(parameter) not in self._heard:
            self._heard.add(id(parameter))
            parameter.register_post_accumulate_grad_hook(self._look)

    def _look(self, parameter: torch.Tensor) -> None:
        name = self.count.names[id(parameter)]
        self._produced.setdefault(name)
        if self._culprit is None and parameter.grad is not None and nonfinite(_flat(parameter.grad)):
            self._culprit = name


def optimizer_names(optimizers: Optimizers) -> list[str]:
    """The class of each, numbered where several share one."""
    classes = [type(optimizer).__name__ for optimizer in optimizers]
    return [
        name if classes.count(name) == 1 else f"{name}#{classes[:place].count(name)}"
        for place, name in enumerate(classes)
    ]


def nonfinite(values: torch.Tensor) -> int:
    return int((~values.isfinite()).sum())


def _flat(gradient: torch.Tensor) -> torch.Tensor:
    dense = gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()
    return dense.clone().reshape(-1)
