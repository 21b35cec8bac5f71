"""Who overflowed, where only a device knows that somebody did: counted there, on the device's own word.

A skip that the host learns of too late, in a fused optimizer's kernel, or with gradients that are changed between
``unscale_()`` and ``step()``, can be explained only by what was counted before. So one kernel is launched at each such
update, and looks at the gradients where the scaler found something. To say which gradients are meant, each has to be
asked where it lies: of the training's time this takes no more than a two-hundredth, in a training of short updates by
leaving some out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from scalescope.numerics.guarded import GuardedCount
from scalescope.numerics.transfer import is_capturing
from scalescope.taps.backward.gradients import local
from scalescope.taps.parameters import Parameters
from scalescope.updates import Counted

# What a scaler found for one optimizer: a tensor for each device, above 0 for "skip".
Found = Mapping[torch.device, torch.Tensor]
# Makes what counts on one device; None where nothing can.
CountOf = Callable[[torch.device], GuardedCount | None]

# Between the beginnings of two looks lies so many times what the first of them took.
_APART = 200

_NO_KERNEL = "nothing counts on a device of this kind"
_OUT_OF_REACH = "its gradients there are sparse, of an unusual layout, or none"
_UNREAD = "too many counts have not been read yet"
_TOO_FAST = "updates are too short for a look at each"
_CAPTURED = "a CUDA graph was being captured"


class Mine(NamedTuple):
    """The parameters of one optimizer on one device that this rank reports, and their indexes."""

    parameters: list[torch.Tensor]
    indexes: list[int]
    sharded: bool


class Culprits:
    """See the module. Optimizers go by their number."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        parameters: Parameters,
        count_of: CountOf,
        clock_ns: Callable[[], int],
    ) -> None:
        self._optimizers = optimizers
        self._parameters = parameters
        self._count_of = count_of
        self._clock_ns = clock_ns
        # By the optimizer's number.
        self._not_before_ns: dict[int, int] = {}
        self._counts: dict[tuple[int, torch.device], GuardedCount | None] = {}
        # By the optimizer's number; and what it was made of, and has to be made anew for.
        self._mine: dict[int, dict[torch.device, Mine]] = {}
        self._made_of: dict[int, tuple[object, ...]] = {}

    def count(self, number: int, found: Found) -> list[Counted] | str:
        """Count what of the gradients of an optimizer is not finite, on each device on which something was ``found``.

        Returns:
            A count for each device, on its way; or why there is none.
        """
        start_ns = self._clock_ns()
        if start_ns < self._not_before_ns.get(number, 0):
            return _TOO_FAST
        try:
            return self._counted(number, found)
        finally:
            # Each has its part of the two-hundredth: else the first of them would take the others' turn each time.
            apart = _APART * len(self._optimizers)
            self._not_before_ns[number] = start_ns + apart * (self._clock_ns() - start_ns)

    def forget(self) -> None:
        """Hold no parameter any more."""
        self._mine.clear()
        self._made_of.clear()

    def _counted(self, number: int, found: Found) -> list[Counted] | str:
        mine = self._mine_of(number)
        counted: list[Counted] = []
        for device, verdict in found.items():
            count = self._count_on(number, device)
            if count is None:
                return _NO_KERNEL
            if is_capturing(verdict):
                # It would be launched again and again, into memory that is another update's by then.
                return _CAPTURED
            on_device = mine.get(device)
            if on_device is None:
                # Of what is there another rank reports.
                continue
            one = _count(count, on_device, verdict)
            if isinstance(one, str):
                return one
            counted.append(one)
        return counted

    def _count_on(self, number: int, device: torch.device) -> GuardedCount | None:
        key = number, device
        if key not in self._counts:
            self._counts[key] = self._count_of(device)
        return self._counts[key]

    def _mine_of(self, number: int) -> dict[torch.device, Mine]:
        groups = self._optimizers[number].param_groups
        held = sum(len(group["params"]) for group in groups)
        device = next((tensor.device for group in groups for tensor in group["params"]), None)
        made_of = len(self._parameters), held, device
        if self._made_of.get(number) != made_of:
            self._mine[number], self._made_of[number] = self._find(number), made_of
        return self._mine[number]

    def _find(self, number: int) -> dict[torch.device, Mine]:
        found: dict[torch.device, Mine] = {}
        held = [tensor for group in self._optimizers[number].param_groups for tensor in group["params"]]
        sharded = any(hasattr(tensor, "to_local") for tensor in held)
        for tensor in held:
            index = self._parameters.index(tensor)
            if index is not None and self._parameters.shares.reports(index):
                mine = found.setdefault(tensor.device, Mine([], [], sharded))
                mine.parameters.append(tensor)
                mine.indexes.append(index)
        return found


def _count(count: GuardedCount, mine: Mine, verdict: torch.Tensor) -> Counted | str:
    gradients = [gradient for parameter in mine.parameters if (gradient := parameter.grad) is not None]
    indexes: Sequence[int] = mine.indexes
    if len(gradients) < len(indexes):
        with_one = zip(mine.parameters, mine.indexes, strict=True)
        indexes = [index for parameter, index in with_one if parameter.grad is not None]
    if mine.sharded:
        with torch.no_grad():
            gradients = [local(gradient) for gradient in gradients]
    if not count.prepare(gradients):
        return _OUT_OF_REACH if not count.path.reason else str(count.path)
    guarded = count.count_if(verdict)
    if guarded is None:
        return _UNREAD if not count.path.reason else str(count.path)
    return Counted(indexes, guarded)
