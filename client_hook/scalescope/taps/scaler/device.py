"""The update under way as far as only a device knows of it: nothing here makes the host wait.

Torch itself waits for the verdict in the step of an optimizer that is not fused, and then steps, or does not: by that
the host knows as well. A fused optimizer decides on the device; and what overflowed is to be counted there too, before
anything has changed the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import NamedTuple

import torch

from scalescope.numerics.guarded import GuardedCount, counts_pool
from scalescope.numerics.measure import kernels_of
from scalescope.numerics.pool import Pool
from scalescope.readback import CUDA, Gathering, Value, at_hand
from scalescope.taps.loop import Loop
from scalescope.taps.optimizer import has_hooks
from scalescope.taps.parameters import Parameters
from scalescope.taps.scaler.culprits import CountOf, Culprits, Found
from scalescope.updates import Counted

_STRANGER = "the optimizer that overflowed is not watched"
_IN_KERNEL = "the optimizer decides on the device whether to skip, and the host learns of it too late to look"
_CHANGED = "gradients may have been changed, by clipping for example, between unscale_() and step()"


class Reach(NamedTuple):
    """What can be had of a device.

    Attributes:
        is_away: whether reading a tensor would make the host wait.
        gathering: what brings numbers to the host together.
        count_of: what counts on one device; None for one where nothing can.
        clock_ns: says how long that takes.
    """

    is_away: Callable[[torch.Tensor], bool]
    gathering: Gathering
    count_of: CountOf
    clock_ns: Callable[[], int] = perf_counter_ns


class Awaited(NamedTuple):
    """A step that tells what was found: ``scale`` is what the gradients were divided by.

    ``explicit``: ``unscale_()`` was called before it. ``values``: what was found, where the step itself is not heard.
    """

    scale: Value | None
    explicit: bool
    values: Sequence[Value] | None

    def skipped(self) -> bool:
        """Of a step that is over and did not come to the optimizer."""
        return self.values is None or any((at_hand(value) or 0.0) > 0 for value in self.values)


class DeviceSide:
    """What is on its way, or awaited, of the update under way. Optimizers go by their ``id``."""

    def __init__(self, loop: Loop, parameters: Parameters, reach: Reach | None = None) -> None:
        self._loop = loop
        reach = reach or _cuda()
        self.is_away = reach.is_away
        self._gathering = reach.gathering
        self._culprits = Culprits(loop.optimizers, parameters, reach.count_of, reach.clock_ns)
        self.awaited: dict[int, Awaited] = {}
        # What the host has learnt of a verdict by a step that it has waited for.
        self.decided: dict[int, list[Value]] = {}
        self.counted: dict[int, list[Counted]] = {}

    def read(self, tensors: Sequence[torch.Tensor]) -> list[Value]:
        """The numbers in ``tensors`` as they stand now."""
        return self._gathering.read(tensors) if tensors else []

    def unscaled(self, optimizer: torch.optim.Optimizer, found: Found, scale: Value | None, *, asked: bool) -> None:
        """Gradients were checked, and divided by ``scale``, in a step that was ``asked`` for or before one."""
        number = self._loop.numbers.get(id(optimizer))
        in_kernel = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        if number is None:
            self._loop.sampling.cannot_see(_STRANGER)
            return
        if not in_kernel:
            values = None if has_hooks(optimizer) else self.read(list(found.values()))
            self.awaited[id(optimizer)] = Awaited(scale, not asked, values)
        if in_kernel or not asked:
            self._loop.edge.guard(self._count, optimizer, number, found, _IN_KERNEL if in_kernel else _CHANGED)

    def closed(self) -> None:
        """The update is over."""
        self.awaited.clear()
        self.decided.clear()
        self.counted.clear()

    def finish(self) -> None:
        """Hold nothing any more."""
        self.closed()
        self._culprits.forget()

    def _count(self, optimizer: torch.optim.Optimizer, number: int, found: Found, why: str) -> None:
        spread = self._loop.sampling.spread(number)
        counted = spread or self._culprits.count(number, found)
        if isinstance(counted, str):
            self._loop.sampling.cannot_see(spread or f"{why}; counting there: {counted}")
        else:
            self.counted[id(optimizer)] = counted


def _cuda() -> Reach:
    pools: dict[torch.device, Pool] = {}

    def count_of(device: torch.device) -> GuardedCount | None:
        if device.type != "cuda":
            return None
        if device not in pools:
            pools[device] = counts_pool(device)
        return GuardedCount(device, kernels_of(device), pool=pools[device])

    return Reach(_is_away, CUDA, count_of)


def _is_away(tensor: torch.Tensor) -> bool:
    return not tensor.is_cpu
