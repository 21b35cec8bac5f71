"""Where Megatron's optimizers keep gradients: before their step, and after one that was skipped.

Before it the model's parameters hold them, scaled and accumulated, as ``main_grad`` or ``grad``: whole, or, with the
distributed optimizer, in the range of each parameter that this rank steps. A skipped step leaves them divided by the
scale on the main parameters, the fp32 copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch

from scalescope.taps.library.optimizer import Gradient
from scalescope.taps.ranks.wrappers import Held
from scalescope.wire import Part

BLIND = "Megatron keeps the gradients where they cannot be told apart by parameter"

# An optimizer of Megatron's, of whatever class.
Theirs = Any

# Groups of the model's parameters, and of the main parameters that stand for them, by who has them: the distributed
# optimizer (the second where it keeps no fp32 copy), the one for half precision.
_PAIRED = (
    ("model_float16_groups", "shard_fp32_from_float16_groups"),
    ("model_float16_groups", "shard_float16_groups"),
    ("model_fp32_groups", "shard_fp32_groups"),
    ("float16_groups", "fp32_from_float16_groups"),
    ("fp32_from_fp32_groups", "fp32_from_fp32_groups"),
)


def leaves(optimizer: Theirs) -> Sequence[Theirs]:
    """The optimizers of a chain; one that is none itself."""
    chained = getattr(optimizer, "chained_optimizers", None)
    return [optimizer] if chained is None else [leaf for each in chained for leaf in leaves(each)]


def parameters(optimizer: Theirs) -> list[torch.Tensor]:
    """The parameters of the model that this rank steps, in part or whole."""
    return [parameter for leaf in leaves(optimizer) for parameter in _parameters(leaf)]


def can_tell(optimizer: Theirs) -> bool:
    """Whether it is known of any of its optimizers where the gradients are."""
    return any(True for leaf in leaves(optimizer) for _ in _parameters(leaf))


def scaled(optimizer: Theirs) -> Iterator[Gradient]:
    """Each parameter's gradient, or this rank's range of it, before the step."""
    for leaf in leaves(optimizer):
        ranges = getattr(leaf, "_get_model_param_range_map", None)
        for parameter in _parameters(leaf):
            gradient = getattr(parameter, "main_grad", None)
            gradient = parameter.grad if gradient is None else gradient
            if gradient is not None:
                yield parameter, gradient if ranges is None else _in_range(gradient, ranges(parameter)["param"])


def unscaled(optimizer: Theirs) -> Iterator[Gradient]:
    """The same after a step that was skipped, divided by the scale."""
    for leaf in leaves(optimizer):
        for models, mains in _PAIRED:
            for parameter, main in zip(_flat(leaf, models), _flat(leaf, mains), strict=False):
                gradient = getattr(main, "decoupled_grad", None)
                gradient = getattr(main, "grad", None) if gradient is None else gradient
                if gradient is not None:
                    yield parameter, gradient


def shares(optimizer: Theirs) -> dict[int, Held]:
    """What this rank steps of each parameter, by its ``id``, with the distributed optimizer.

    Without it, and of what tensor parallelism divides, each rank tells what it has.
    """
    found = {}
    for leaf in leaves(optimizer):
        ranges = getattr(leaf, "_get_model_param_range_map", None)
        if ranges is not None:
            own = {id(parameter): ranges(parameter)["param"] for parameter in _parameters(leaf)}
            buffered = [parameter for buffer in getattr(leaf, "buffers", ()) for parameter in buffer.params]
            for parameter in [*_parameters(leaf), *buffered]:
                if not getattr(parameter, "tensor_model_parallel", False):
                    found[id(parameter)] = _held(parameter, own.get(id(parameter)))
    return found


def _held(parameter: torch.Tensor, of_parameter: Any) -> Held:
    length = 0 if of_parameter is None else of_parameter.end - of_parameter.start
    leads = of_parameter is not None and of_parameter.start == 0
    return Held(tuple(parameter.shape), Part("sharded", length, leads))


def _parameters(leaf: Theirs) -> Iterable[torch.Tensor]:
    if getattr(leaf, "is_stub_optimizer", False):
        return []
    names = dict.fromkeys(models for models, _ in _PAIRED)
    if any(hasattr(leaf, name) for name in names):
        return [parameter for name in names for parameter in _flat(leaf, name)]
    # In fp32 they are the model's own.
    inner = getattr(leaf, "optimizer", None)
    groups = getattr(inner, "param_groups", ()) if not hasattr(leaf, "grad_scaler") else ()
    return [parameter for group in groups for parameter in group["params"]]


def _flat(leaf: Theirs, name: str) -> Iterator[Any]:
    return chain.from_iterable(getattr(leaf, name, None) or ())


def _in_range(gradient: torch.Tensor, of_parameter: Any) -> torch.Tensor:
    return gradient.view(-1)[of_parameter.start : of_parameter.end]
