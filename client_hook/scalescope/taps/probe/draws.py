"""Whether both runs of a probe drew the same random numbers: else they are not of the same micro-batch.

The same state of a generator need not give the same numbers: a kernel may draw in another order for another
format, and a compiled graph draws in its own way. What dropout kept in one run and not in the other would be
told as lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from scalescope.taps.probe.precision import ProbeError

# The first values of each draw: enough to tell two sequences apart.
_LOOKED_AT = 1 << 14
_ROUNDED = 2.0**-7
# What a mode is handed for any operation.
Given = Any


class Draws(TorchDispatchMode):
    """Notes what is drawn."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.drawn: list[torch.Tensor] = []

    def __torch_dispatch__(
        self, func: Given, types: Given, args: Sequence[Given] = (), kwargs: Mapping[str, Given] | None = None
    ) -> Given:
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._note(func, result, _argument(func, "dropout_p", args, kwargs or {}))
        return result

    def _note(self, func: Given, result: Given, dropout: float | None) -> None:
        """``dropout``: None where the operation has none of its own, and all that it gives is drawn."""
        if dropout:
            raise ProbeError(
                f"{func} drops out inside of its kernel, other values in each precision: call eval() on the model, or "
                "take its dropout as 0, in loss_fn; modes are put back"
            )
        if dropout is None:
            tensors = [leaf for leaf in tree_iter(result) if isinstance(leaf, torch.Tensor)]
            # Beside a mask, values are the model's own.
            masks = [tensor for tensor in tensors if tensor.dtype == torch.bool]
            self.drawn += [_first(tensor) for tensor in masks or tensors[:1]]


def check_alike(one: Draws, other: Draws) -> None:
    """Raises :class:`ProbeError` if the two runs drew different numbers, by more than a rounding to half."""
    pairs = zip(one.drawn, other.drawn, strict=False)
    if len(one.drawn) != len(other.drawn) or not all(torch.allclose(*pair, rtol=_ROUNDED) for pair in pairs):
        raise ProbeError(
            "the two precisions drew different random numbers, for dropout or noise, and cannot be compared: call "
            "eval() on the model in loss_fn; modes are put back"
        )


def check_none(draws: Draws) -> None:
    """Raises :class:`ProbeError` if anything was drawn, beside a run in which nobody could look."""
    if draws.drawn:
        raise ProbeError(
            "a compiled graph draws random numbers, for dropout or noise, in its own way, and cannot be compared: call "
            "eval() on the model in loss_fn; modes are put back"
        )


def _first(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().flatten()[:_LOOKED_AT].to(torch.float32, copy=True)


def _argument(func: Given, name: str, args: Sequence[Given], kwargs: Mapping[str, Given]) -> Given:
    """What ``func`` was given as ``name``, or its default; None where it has no such argument."""
    for place, argument in enumerate(func._schema.arguments):  # noqa: SLF001 - no public way to an operation's names
        if argument.name == name:
            return kwargs.get(name, args[place] if place < len(args) else argument.default_value)
    return None
