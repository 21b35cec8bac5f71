"""What the hook may have put somewhere, so that all of it can be looked at before and after."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType

import torch
from torch import nn
from torch.amp import GradScaler

# Where torch keeps hooks, by the attributes of the objects that have them.
_OF_MODULES = (
    *("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs"),
    *("_forward_hooks_always_called", "_backward_hooks", "_backward_pre_hooks", "_non_full_backward_hooks"),
    *("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_OF_OPTIMIZERS = (
    *("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"),
    *("_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks"),
    *("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks"),
)
# Methods that a tap could put over those of the class.
_METHODS = frozenset({"forward", "__call__", "step", "zero_grad", "scale", "unscale_", "update", "backward"})
# The modules of torch whose functions and classes take part in a training.
_NAMESPACES = (
    *("torch", "torch.autograd", "torch.autograd.graph", "torch.amp.autocast_mode", "torch.amp.grad_scaler"),
    *("torch.nn.modules.module", "torch.nn.utils", "torch.nn.utils.clip_grad", "torch.nn.functional"),
    *("torch.nn.parallel.distributed", "torch.optim.optimizer", "torch.optim.lr_scheduler", "torch.optim.lbfgs"),
    *("torch.utils.checkpoint", "torch._tensor", "torch.distributed"),
)
_CLASSES = ("Tensor", "Module", "Optimizer", "LRScheduler", "GradScaler", "autocast", "DistributedDataParallel")

# Name -> what is there.
Traces = dict[str, object]


def on_objects(
    models: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer], scalers: Iterable[GradScaler]
) -> Traces:
    """Name -> what is there now: the classes, the hooks and the own methods of the things that are watched."""
    return dict(_of_objects(models, optimizers, scalers))


def in_torch() -> Traces:
    """Name -> the function or class that torch has under it now."""
    return dict(_of_torch())


def left_over(before: Traces, after: Traces) -> list[str]:
    """What is not as it was. What came later must have no hooks at all."""
    changed = [name for name, value in before.items() if name in after and after[name] != value]
    return changed + [name for name, value in after.items() if name not in before and isinstance(value, list) and value]


def _of_objects(
    models: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer], scalers: Iterable[GradScaler]
) -> Iterator[tuple[str, object]]:
    for number, model in enumerate(models):
        for name, module in model.named_modules():
            yield from _of_one(f"model {number} {name}", module, _OF_MODULES)
        for name, parameter in model.named_parameters():
            yield from _of_one(f"parameter {number} {name}", parameter, _OF_PARAMETERS)
    for number, optimizer in enumerate(optimizers):
        yield from _of_one(f"optimizer {number}", optimizer, _OF_OPTIMIZERS)
    for number, scaler in enumerate(scalers):
        yield from _of_one(f"scaler {number}", scaler, ())


def _of_one(name: str, thing: object, hooks: Iterable[str]) -> Iterator[tuple[str, object]]:
    yield f"{name}: class", type(thing)
    yield f"{name}: methods", sorted(_METHODS.intersection(vars(thing)))
    for attribute in hooks:
        held = getattr(thing, attribute, None) or {}
        yield f"{name}: {attribute}", list(held.values() if isinstance(held, dict) else held)


def _of_torch() -> Iterator[tuple[str, object]]:
    for name in _NAMESPACES:
        module = sys.modules.get(name)
        if isinstance(module, ModuleType):
            yield from _functions(name, vars(module))
            for kind in _CLASSES:
                found = vars(module).get(kind)
                if isinstance(found, type):
                    yield from _functions(f"{name}.{kind}", dict(vars(found)))
    hooks = sys.modules["torch.nn.modules.module"]
    for attribute in [name for name in vars(hooks) if name.startswith("_global_") and name.endswith("hooks")]:
        yield attribute, list(getattr(hooks, attribute))
    # A process group puts one of its own there.
    yield "excepthook", sys.excepthook.__module__.startswith("scalescope")


def _functions(owner: str, held: dict[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in held.items():
        # Asked of the type, since some of what torch keeps there answers for itself, with a warning.
        if issubclass(type(value), FunctionType | type | classmethod | staticmethod):
            yield f"{owner}.{name}", value
