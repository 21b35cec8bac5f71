"""Numbers that live in tensors, read without making the training thread wait.

On the CPU a number is read at once, elsewhere when its transfer has arrived.
"""

from __future__ import annotations

import torch

from scalescope.numerics.transfer import Arrival, to_host


class Reading:
    """Numbers on their way to the host."""

    __slots__ = ("_copied", "_event", "_host")

    def __init__(self, host: torch.Tensor, event: Arrival | None, *, copied: bool) -> None:
        self._host = host
        self._event = event
        self._copied = copied

    def ready(self) -> bool:
        """Whether the numbers can be had. Asks, never waits."""
        return self._event is None or self._event.query()

    def numbers(self) -> list[float]:
        """All numbers, flat. Only when :meth:`ready`; on devices without events this waits for the device."""
        return [float(value) for value in self._host.reshape(-1).tolist()]

    def number(self) -> float:
        """The only number."""
        return float(self._host.item())

    def here(self) -> bool:
        """Whether the numbers are on the host already: then nobody waits for them, the training thread neither."""
        return self._copied and self.ready()

    def at_hand(self) -> float | None:
        """The only number if it is on the host already. Never waits, so the training thread may ask."""
        return self.number() if self.here() else None


Value = float | Reading


def read_later(tensor: torch.Tensor) -> Value:
    """The number in a tensor of one element: itself on the CPU, else a reading of what it holds now."""
    if tensor.is_cpu:
        return float(tensor.item())
    return copied(tensor)


def copied(tensor: torch.Tensor) -> Reading:
    """All numbers of ``tensor`` as they stand at this point of its device's stream."""
    values, event, on_host = to_host(tensor)
    return Reading(values, event, copied=on_host)


def ready(value: Value) -> bool:
    return isinstance(value, float) or value.ready()


def number(value: Value) -> float:
    """The number. Only when :func:`ready`."""
    return value if isinstance(value, float) else value.number()


def at_hand(value: Value) -> float | None:
    """The number if it is on the host, without waiting."""
    return value if isinstance(value, float) else value.at_hand()
