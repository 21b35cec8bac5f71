"""What a training holds in memory, in bytes, on this rank."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec

import torch

from scalescope.taps.backward.gradients import local
from scalescope.taps.loop import Loop
from scalescope.taps.parameters import Parameters

# A peak that grew by less is told as it was: it creeps.
_GROWTH = 1 + 1 / 16


class Memory:
    """Adds up tensors, each once, whoever holds it; remembers the peak that was told, and the most of gradients."""

    def __init__(self, loop: Loop, parameters: Parameters) -> None:
        self._loop = loop
        self._parameters = parameters
        self._gradients = 0
        self._peak: tuple[int, str] | None = None

    def __call__(self) -> dict[str, object]:
        """``parameters``, ``gradients`` (the most that was seen), ``optimizer_state``, ``buffers``, ``peak``.

        ``peak_of`` says of what the peak is: ``cuda`` (what torch has allocated on the devices of the parameters)
        or ``process`` (resident memory; where there is no device to ask). It is left out where neither is known.
        """
        parameters = self._all_parameters()
        self._gradients = max(self._gradients, _total(p.grad for p in parameters if p.grad is not None))
        told: dict[str, object] = {
            "parameters": _total(parameters),
            "gradients": self._gradients,
            "optimizer_state": _total(_state(self._loop.optimizers)),
            "buffers": _total(buffer for model in self._parameters.models() for buffer in model.buffers()),
        }
        peak = _peak({local(parameter).device for parameter in parameters})
        if peak is not None and (self._peak is None or peak[0] > self._peak[0] * _GROWTH):
            self._peak = peak
        return told | ({} if self._peak is None else {"peak": self._peak[0], "peak_of": self._peak[1]})

    def _all_parameters(self) -> list[torch.Tensor]:
        """Those of the models, frozen ones too, and what else the optimizers hold."""
        held = [p for each in self._loop.optimizers for group in each.param_groups for p in group["params"]]
        return [p for model in self._parameters.models() for p in model.parameters()] + held


def _state(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[torch.Tensor]:
    for optimizer in optimizers:
        for state in optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def _total(tensors: Iterable[torch.Tensor]) -> int:
    return sum(map(_nbytes, {id(tensor): tensor for tensor in tensors}.values()))


def _nbytes(tensor: torch.Tensor) -> int:
    shard = local(tensor.detach())
    if shard.layout is torch.sparse_coo:
        return shard._indices().nbytes + shard._values().nbytes  # noqa: SLF001 - values() wants a coalesced tensor
    return shard.nbytes if shard.layout is torch.strided else 0


def _peak(devices: set[torch.device]) -> tuple[int, str] | None:
    cuda = [device for device in devices if device.type == "cuda"]
    if cuda:
        return sum(torch.cuda.max_memory_allocated(device) for device in cuda), "cuda"
    if any(device.type != "cpu" for device in devices) or find_spec("resource") is None:
        return None
    # Windows has none.
    import resource

    # Kilobytes, but on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "process"
