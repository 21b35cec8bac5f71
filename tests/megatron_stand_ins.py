"""Small stand-ins of Megatron's optimizers and scaler: the attributes that the adapter reads, changed as theirs are.

Written after Megatron Core 0.16. They train for real, on the CPU; gradients are moved to ``main_grad`` as Megatron's
data parallelism moves them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import torch
from torch import nn

from tests.small_training import Chain

Stepped = tuple[bool, float | None, int | None]


class DynamicGradScaler:
    """Halves when the hysteresis is used up, and then at each overflow: it is refilled when the scale doubles."""

    def __init__(self, scale: float, *, interval: int = 4, hysteresis: int = 2) -> None:
        self._scale = torch.tensor([scale])
        self.growth_factor, self.backoff_factor = torch.tensor([2.0]), torch.tensor([0.5])
        self.growth_interval, self.hysteresis = interval, hysteresis
        self._growth_tracker, self._hysteresis_tracker = 0, hysteresis

    @property
    def scale(self) -> torch.Tensor:
        return self._scale

    def update(self, found_inf: bool) -> None:
        self._growth_tracker = 0 if found_inf else self._growth_tracker + 1
        if found_inf:
            self._hysteresis_tracker -= 1
            if self._hysteresis_tracker <= 0:
                self._scale = self._scale * self.backoff_factor
        elif self._growth_tracker == self.growth_interval:
            self._growth_tracker, self._hysteresis_tracker = 0, self.hysteresis
            self._scale = self._scale * self.growth_factor


class Float16Optimizer:
    """As Float16OptimizerWithFloat16Params: fp32 copies of the parameters, with the gradients of their own."""

    def __init__(self, parameters: Sequence[torch.Tensor], scaler: DynamicGradScaler | None) -> None:
        self.float16_groups = [list(parameters)]
        self.fp32_from_float16_groups = [[parameter.detach().float() for parameter in parameters]]
        self.fp32_from_fp32_groups: list[list[torch.Tensor]] = []
        self.optimizer = torch.optim.SGD(self.fp32_from_float16_groups[0], lr=0.01)
        self.grad_scaler = scaler
        self.is_stub_optimizer = False
        self.config = SimpleNamespace(clip_grad=1.0, log_num_zeros_in_grad=True)

    @property
    def param_groups(self) -> list[dict[str, object]]:
        return self.optimizer.param_groups

    def prepare_grads(self) -> bool:
        found = False
        scale = 1.0 if self.grad_scaler is None else self.grad_scaler.scale.item()
        for model, main in self.pairs():
            main.grad = self.gradient(model).float()
            found |= not bool(main.grad.isfinite().all())
            # In place, and so in main_grad as well.
            main.grad.mul_(1 / scale)
        if self.grad_scaler is None:
            return False
        self.grad_scaler.update(found)
        return found

    def step_with_ready_grads(self) -> bool:
        self.optimizer.step()
        with torch.no_grad():
            for model, main in self.pairs():
                self.write(model, main)
        return True

    def grad_norm(self) -> float:
        norms = [main.grad.norm() for _, main in self.pairs() if main.grad is not None]
        return float(torch.stack(norms).norm())

    def zeros(self) -> int:
        return sum(int((main.grad == 0).sum()) for _, main in self.pairs() if main.grad is not None)

    def step(self) -> Stepped:
        if self.prepare_grads():
            return False, None, None
        norm, zeros = self.grad_norm(), self.zeros()
        return self.step_with_ready_grads(), norm, zeros

    def pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return zip(self.float16_groups[0], self.fp32_from_float16_groups[0], strict=True)

    def gradient(self, parameter: torch.Tensor) -> torch.Tensor:
        return main_grad(parameter)

    def write(self, parameter: torch.Tensor, main: torch.Tensor) -> None:
        parameter.copy_(main)


class DistributedOptimizer(Float16Optimizer):
    """As the class of that name on the first of two ranks: it steps the first half of each parameter."""

    def __init__(self, parameters: Sequence[torch.Tensor], scaler: DynamicGradScaler | None) -> None:
        super().__init__([parameter.detach().view(-1)[: parameter.numel() // 2] for parameter in parameters], scaler)
        self.model_float16_groups = [list(parameters)]
        self.shard_fp32_from_float16_groups = self.fp32_from_float16_groups
        self.model_fp32_groups: list[list[torch.Tensor]] = [[]]
        self.shard_fp32_groups: list[list[torch.Tensor]] = [[]]
        del self.float16_groups, self.fp32_from_float16_groups, self.fp32_from_fp32_groups

    def pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return zip(self.model_float16_groups[0], self.shard_fp32_from_float16_groups[0], strict=True)

    def gradient(self, parameter: torch.Tensor) -> torch.Tensor:
        return main_grad(parameter).view(-1)[: parameter.numel() // 2]

    def write(self, parameter: torch.Tensor, main: torch.Tensor) -> None:
        parameter.view(-1)[: main.numel()].copy_(main)

    def _get_model_param_range_map(self, parameter: torch.Tensor) -> dict[str, SimpleNamespace]:
        return {"param": SimpleNamespace(start=0, end=parameter.numel() // 2)}


class ChainedOptimizer:
    """Several, stepped together or not at all."""

    def __init__(self, chained: Sequence[Float16Optimizer]) -> None:
        self.chained_optimizers = list(chained)
        self.config = chained[0].config

    @property
    def param_groups(self) -> list[dict[str, object]]:
        return [group for each in self.chained_optimizers for group in each.param_groups]

    def step(self) -> Stepped:
        # Each is asked, whatever the one before has found.
        found = [each.prepare_grads() for each in self.chained_optimizers]
        if any(found):
            return False, None, None
        norm = sum(each.grad_norm() ** 2 for each in self.chained_optimizers) ** 0.5
        zeros = sum(each.zeros() for each in self.chained_optimizers)
        stepped = [each.step_with_ready_grads() for each in self.chained_optimizers]
        return all(stepped), norm, zeros


class Float16Module(nn.Module):
    """What Megatron wraps a model in, by the name of its class."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def main_grad(parameter: torch.Tensor) -> torch.Tensor:
    found = parameter.main_grad  # type: ignore[attr-defined]  # Megatron's own attribute
    assert isinstance(found, torch.Tensor)
    return found


def train(
    optimizer: Float16Optimizer | ChainedOptimizer, model: Chain, updates: int, *, overflows: Sequence[int] = ()
) -> list[float]:
    """The losses of so many updates; those of ``overflows`` have a gradient too large in the third layer."""
    leaves = optimizer.chained_optimizers if isinstance(optimizer, ChainedOptimizer) else [optimizer]
    torch.manual_seed(1)
    losses = []
    for update, batch in enumerate(torch.randn(updates, 4, 8).half()):
        model.overflow_at = 2 if update in overflows else None
        loss = (model(batch).float() - 1).square().mean()
        scaler = leaves[0].grad_scaler
        (loss if scaler is None else loss * scaler.scale).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.main_grad = parameter.grad.float()  # type: ignore[attr-defined]
            parameter.grad = None
        optimizer.step()
        losses.append(loss.item())
    return losses
