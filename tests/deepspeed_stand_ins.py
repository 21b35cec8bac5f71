"""Small stand-ins of DeepSpeed's optimizers: the attributes that the adapter reads, changed in the order of theirs.

Written after DeepSpeed 0.19. They train for real, on the CPU, with the loss scaled as an engine scales it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import nn

from tests.small_training import Chain


class DynamicLossScaler:
    """ZeRO's: halves once the hysteresis is used up, and raises where it is at its lowest already."""

    def __init__(self, scale: float, *, window: int = 4, hysteresis: int = 1, lowest: float = 1.0) -> None:
        self.cur_scale = scale
        self.cur_iter = 0
        self.last_overflow_iter = -1
        self.scale_factor = 2.0
        self.scale_window = window
        self.delayed_shift = self.cur_hysteresis = hysteresis
        self.dynamic = True
        self._lowest = lowest

    def update_scale(self, overflow: bool) -> None:
        if overflow and self.cur_hysteresis > 1:
            self.cur_hysteresis -= 1
        elif overflow and self.cur_scale == self._lowest:
            raise RuntimeError("the scale is at its lowest already")
        elif overflow:
            self.cur_scale = max(self.cur_scale / 2, self._lowest)
        clean = self.cur_iter - self.last_overflow_iter - 1
        if overflow:
            self.last_overflow_iter = self.cur_iter
        elif clean > 0 and clean % self.scale_window == 0:
            self.cur_hysteresis = self.delayed_shift
            self.cur_scale *= 2
        self.cur_iter += 1


class Stepping:
    """What they have in common: copies of the weights, and a step that skips."""

    overflow = False
    _global_grad_norm: float | None = None

    def __init__(self, model: nn.Module, scaler: DynamicLossScaler) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self.loss_scaler = scaler

    @property
    def param_groups(self) -> list[dict[str, object]]:
        return self.optimizer.param_groups

    def step(self) -> None:
        gradients = self.gradients()
        norm = torch.stack([gradient.float().norm() for gradient in gradients]).norm().item()
        self.overflow = not norm < float("inf")
        scale = self.loss_scaler.cur_scale
        self._update_scale(self.overflow)
        if self.overflow:
            self._global_grad_norm = float("inf")
        else:
            self._global_grad_norm = norm / scale
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                parameter.grad = (gradient.reshape(parameter.shape) / scale).to(parameter.dtype)
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.forget()

    def _update_scale(self, has_overflow: bool) -> None:
        self.loss_scaler.update_scale(has_overflow)

    def gradients(self) -> list[torch.Tensor]:
        raise NotImplementedError

    def forget(self) -> None:
        """Nothing of a gradient is left after a step."""


class WithoutZero(Stepping):
    """As FP16_UnfusedOptimizer: gradients stay with the parameters, and the norm is not divided by the scale."""

    def __init__(self, model: nn.Module, scaler: DynamicLossScaler) -> None:
        super().__init__(model, scaler)
        self.fp16_groups = [list(model.parameters())]
        self.fp32_groups = [[parameter.detach().float() for parameter in model.parameters()]]

    def step(self) -> None:
        scale = self.loss_scaler.cur_scale
        super().step()
        if not self.overflow and self._global_grad_norm is not None:
            self._global_grad_norm *= scale

    def gradients(self) -> list[torch.Tensor]:
        return [parameter.grad for parameter in self.fp16_groups[0] if parameter.grad is not None]


class Zero(Stepping):
    """As DeepSpeedZeroOptimizer on one rank: gradients leave the parameters for a partition, which is padded."""

    padding = 3

    def __init__(self, model: nn.Module, scaler: DynamicLossScaler) -> None:
        super().__init__(model, scaler)
        self.bit16_groups = [list(model.parameters())]
        self.params_in_partition = [list(model.parameters())]
        self.averaged_gradients: dict[int, list[torch.Tensor] | None] = {}

    def gradients(self) -> list[torch.Tensor]:
        taken = [parameter.grad for parameter in self.bit16_groups[0] if parameter.grad is not None]
        self.averaged_gradients[0] = [*taken, torch.zeros(self.padding)]
        self.optimizer.zero_grad()
        return taken

    def forget(self) -> None:
        self.averaged_gradients[0] = None


def engine(optimizer: object, model: nn.Module) -> SimpleNamespace:
    """What ``deepspeed.initialize`` gives first, as far as it is read."""
    return SimpleNamespace(module=model, optimizer=optimizer, lr_scheduler=None)


def half() -> Chain:
    torch.manual_seed(0)
    return Chain().half()


def train(optimizer: Stepping, updates: int, *, overflows: Sequence[int] = ()) -> list[float]:
    """The losses of so many updates; those of ``overflows`` have a gradient too large in the third layer."""
    model = optimizer.model
    assert isinstance(model, Chain)
    torch.manual_seed(1)
    batches = torch.randn(updates, 4, 8).half()
    losses = []
    for update, batch in enumerate(batches):
        model.overflow_at = 2 if update in overflows else None
        loss = (model(batch).float() - 1).square().mean()
        (loss * optimizer.loss_scaler.cur_scale).backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
