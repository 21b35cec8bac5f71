"""Numbers that live in tensors, read without making the training thread wait.

On the CPU a number is read at once, elsewhere when its transfer has arrived. Those of a CUDA device go through memory
that was made once (see :mod:`~scalescope.numerics.ring`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from scalescope.numerics.ring import Ring, Row, fits
from scalescope.numerics.transfer import Arrival, to_host


class Reading(ABC):
    """A number on its way to the host."""

    __slots__ = ()

    @abstractmethod
    def ready(self) -> bool:
        """Whether it can be had. Asks, never waits."""

    @abstractmethod
    def number(self) -> float:
        """Only when :meth:`ready`; on devices without events this waits for the device."""

    def at_hand(self) -> float | None:
        """The number if it is on the host already. Never waits, so the training thread may ask."""
        return self.number() if self.ready() else None


Value = float | Reading


class Copied(Reading):
    """All numbers of one tensor, by a transfer of its own."""

    __slots__ = ("_copied", "_event", "_host")

    def __init__(self, host: torch.Tensor, event: Arrival | None, *, copied: bool) -> None:
        self._host = host
        self._event = event
        self._copied = copied

    def ready(self) -> bool:
        return self._event is None or self._event.query()

    def numbers(self) -> list[float]:
        """All of them, flat. As :meth:`number`."""
        return [float(value) for value in self._host.reshape(-1).tolist()]

    def number(self) -> float:
        """The only one."""
        return float(self._host.item())

    def here(self) -> bool:
        """Whether the numbers are on the host already: then nobody waits for them, the training thread neither."""
        return self._copied and self.ready()

    def at_hand(self) -> float | None:
        return self.number() if self.here() else None


class Gathered(Reading):
    """One of the numbers that a ring brings to the host together."""

    __slots__ = ("_place", "_row")

    def __init__(self, row: Row, place: int) -> None:
        self._row = row
        self._place = place

    def ready(self) -> bool:
        return self._row.ready()

    def number(self) -> float:
        return self._row.number(self._place)


class Derived(Reading):
    """What ``function`` makes of another number, once that is here."""

    __slots__ = ("_function", "_of")

    def __init__(self, of: Reading, function: Callable[[float], float]) -> None:
        self._of = of
        self._function = function

    def ready(self) -> bool:
        return self._of.ready()

    def number(self) -> float:
        return self._function(self._of.number())

    def at_hand(self) -> float | None:
        found = self._of.at_hand()
        return None if found is None else self._function(found)


class Gathering:
    """Reads numbers of one device together. ``ring_of`` makes the ring of a device, if it can have one."""

    def __init__(self, ring_of: Callable[[torch.device], Ring | None]) -> None:
        self._ring_of = ring_of
        self._rings: dict[torch.device, Ring | None] = {}

    def read(self, tensors: Sequence[torch.Tensor]) -> list[Value]:
        """The numbers in tensors of one element, as they stand now: those of the first one's device in one go."""
        device = tensors[0].device
        ring = self._ring(device)
        together = [] if ring is None else [tensor for tensor in tensors if tensor.device == device and fits(tensor)]
        row = ring.gather(together) if ring is not None and together else None
        if row is None:
            return [_alone(tensor) for tensor in tensors]
        if len(together) == len(tensors):
            return [Gathered(row, place) for place in range(len(tensors))]
        places = {id(tensor): place for place, tensor in enumerate(together)}
        return [Gathered(row, places[id(one)]) if id(one) in places else _alone(one) for one in tensors]

    def _ring(self, device: torch.device) -> Ring | None:
        if device not in self._rings:
            self._rings[device] = self._ring_of(device)
        return self._rings[device]


# CUDA alone says when a copy has arrived. The rings are those of all trainings in the process.
CUDA = Gathering(lambda device: Ring(device) if device.type == "cuda" else None)


def read_later(tensor: torch.Tensor) -> Value:
    """The number in a tensor of one element: itself on the CPU, else a reading of what it holds now."""
    if tensor.is_cpu:
        return float(tensor.item())
    return CUDA.read([tensor.detach().reshape(())])[0]


def copied(tensor: torch.Tensor) -> Copied:
    """All numbers of ``tensor`` as they stand at this point of its device's stream."""
    values, event, on_host = to_host(tensor)
    return Copied(values, event, copied=on_host)


def ready(value: Value) -> bool:
    return isinstance(value, float) or value.ready()


def number(value: Value) -> float:
    """The number. Only when :func:`ready`."""
    return value if isinstance(value, float) else value.number()


def at_hand(value: Value) -> float | None:
    """The number if it is on the host, without waiting."""
    return value if isinstance(value, float) else value.at_hand()


def _alone(tensor: torch.Tensor) -> Value:
    return float(tensor.item()) if tensor.is_cpu else copied(tensor)
