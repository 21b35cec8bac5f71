"""What a probe must leave as it found it, and how: stand-ins where it writes, copies put back where it cannot.

A run writes to the ``grad`` of its leaves and to buffers. Both are stand-ins of its own, so a gradient or a
buffer of the training is not even counted as changed, and no hook on a parameter hears the probe's backward.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from scalescope.taps.probe.precision import HALVES

T = TypeVar("T")

_CONTENTS = ("_parameters", "_buffers", "_modules")
_GONE = object()


class StandIns:
    """Stand-ins for the parameters and buffers of ``models``: the same values, in fp32 where ``wide``.

    Parameters of the same dtype share their memory with the models' own, everything else is copied.
    """

    def __init__(self, models: Sequence[nn.Module], *, wide: bool) -> None:
        self._around = _Around(models)
        self._wide = wide
        # By the identity of the parameter that each stands for.
        self.leaves: dict[int, nn.Parameter] = {}
        self._slots: dict[str, torch.Tensor] = {}
        copies: dict[int, torch.Tensor] = {}
        # Each slot once: a module that is found under two names would get its stand-in for good.
        for prefix, module in self._around.named_modules():
            for name, tensor in module.named_parameters(prefix, recurse=False, remove_duplicate=False):
                self._slots[name] = self.leaves.setdefault(id(tensor), self._leaf(tensor))
            for name, tensor in module.named_buffers(prefix, recurse=False, remove_duplicate=False):
                self._slots[name] = copies.setdefault(id(tensor), self._values(tensor).clone())

    @property
    def devices(self) -> set[torch.device]:
        """Where they are."""
        return {tensor.device for tensor in self._slots.values()}

    def call(self, work: Callable[[], T]) -> T:
        """What ``work`` gives while the models have the stand-ins for their own."""
        result: T = torch.func.functional_call(self._around, self._slots, (work,), tie_weights=False)
        return result

    def _leaf(self, tensor: torch.Tensor) -> nn.Parameter:
        # A parameter again: what was compiled for one is not compiled anew.
        return nn.Parameter(self._values(tensor), requires_grad=tensor.requires_grad)

    def _values(self, tensor: torch.Tensor) -> torch.Tensor:
        found = tensor.detach()
        return found.float() if self._wide and found.dtype in HALVES else found


class _Around(nn.Module):
    """The models under one roof, to have their tensors swapped for the time of a call."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, work: Callable[[], T]) -> T:
        return work()


@contextlib.contextmanager
def modules_kept(models: Sequence[nn.Module]) -> Iterator[None]:
    """Attributes that modules get or change inside are as before: modes, counters, cached tensors.

    What is changed inside of a list or a dict that a module holds is not seen.
    """
    kept = [
        (found, dict(found))
        for model in models
        for module in model.modules()
        for found in (vars(module), *(vars(module)[name] for name in _CONTENTS))
    ]
    try:
        yield
    finally:
        for found, before in kept:
            _restore(found, before)


@contextlib.contextmanager
def draws_kept(devices: Collection[torch.device]) -> Iterator[None]:
    """Random numbers of torch (CPU and ``devices``), Python and numpy go on from where they were before."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the one that others draw from
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for kind in {device.type for device in devices} - {"cpu", "meta"}:
            indexes = [device.index or 0 for device in devices if device.type == kind]
            stack.enter_context(torch.random.fork_rng(devices=indexes, device_type=kind))
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002 - see above


@contextlib.contextmanager
def gradients_aside(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """``tensors`` have no gradient here; afterwards they have the one they had, the same tensor."""
    kept = [(tensor, tensor.grad) for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.grad = None
        yield
    finally:
        for tensor, gradient in kept:
            tensor.grad = gradient


def _restore(found: dict[str, object], before: dict[str, object]) -> None:
    for name in found.keys() - before.keys():
        del found[name]
    for name, value in before.items():
        if found.get(name, _GONE) is not value:
            found[name] = value
