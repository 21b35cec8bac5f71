"""What keeps the reference of a probe in fp32, or notices that it did not stay there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from scalescope.taps.probe.precision import HALVES, ProbeError

# What a mode is handed for any function of torch.
Given = Any


class Widening(TorchFunctionMode):
    """Hands every function of torch fp32 values where it was given half ones, as a batch or a target may be.

    What is written in place stays as it is: a copy would be written to instead.
    """

    def __torch_function__(
        self, func: Given, types: Given, args: Sequence[Given] = (), kwargs: Mapping[str, Given] | None = None
    ) -> Given:
        name = getattr(func, "__name__", "")
        if name == "__get__":
            found = func(*args, **(kwargs or {}))
            # A model that makes a mask in the format of its input.
            return torch.float32 if isinstance(found, torch.dtype) and found in HALVES else found
        if not _writes(name) and "out" not in (kwargs or {}):
            args, kwargs = tree_map_only(torch.Tensor, _widened, (tuple(args), dict(kwargs or {})))
        return func(*args, **(kwargs or {}))


class Checking(TorchDispatchMode):
    """Raises :class:`ProbeError` at the first operation that rounds to half what has a gradient."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)

    def __torch_dispatch__(
        self, func: Given, types: Given, args: Sequence[Given] = (), kwargs: Mapping[str, Given] | None = None
    ) -> Given:
        result = func(*args, **(kwargs or {}))
        narrow = next((found.dtype for found in _tensors(result) if found.dtype in HALVES), None)
        if narrow is not None and not _only_makes(func) and any(map(_is_computed, _tensors((args, kwargs)))):
            raise ProbeError(
                f"the loss function casts to {narrow} by itself ({func}), so that the reference would stay in half: "
                "leave autocast and casts out of it, the probe enters the training's own autocast around it"
            )
        return result


def _writes(name: str) -> bool:
    return name in {"__setitem__", "__set__"} or name.startswith("__i") or (name[-1:] == "_" and name[-2:] != "__")


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in HALVES else tensor


def _only_makes(func: Given) -> bool:
    """Whether it makes a tensor in the likeness of another, whose values it does not round."""
    name: str = func.__name__
    return name.startswith("new_") or "_like" in name


def _is_computed(tensor: torch.Tensor) -> bool:
    """Whether it is a wide value with a gradient: a batch that is cast is the same micro-batch for both precisions."""
    return tensor.requires_grad and tensor.dtype in (torch.float32, torch.float64)


def _tensors(tree: Given) -> list[torch.Tensor]:
    return [leaf for leaf in tree_iter(tree) if isinstance(leaf, torch.Tensor)]
