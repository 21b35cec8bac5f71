"""What was heard of the modules in one update: one entry for each output and each gradient of one, as executed.

Entries keep their order, so the first that is not finite is found later, without a wait, in the link's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from scalescope.numerics.extremes import Extremes
from scalescope.readback import copied

Where = Literal["input", "forward", "backward", "buffer", "parameter"]


class Entry(NamedTuple):
    """What one tensor was like; ``module`` is the index of its module, or a number of its own if it has none."""

    where: Where
    module: int
    numel: int
    extremes: Extremes


class Numbers(NamedTuple):
    """The entries' numbers: amax (float64) and the count of non-finite values (int64), in their order."""

    amax: NDArray[np.float64]
    nonfinite: NDArray[np.int64]


class Heard:
    """The entries of an update that has closed, their numbers on the way: one copy from each device."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self._numbers: Numbers | None = None
        self._waiting = [
            (places, copied(_stacked([entries[place].extremes for place in places]))) for places in _by_device(entries)
        ]

    def ready(self) -> bool:
        """Whether all numbers are on the host. Asks, never waits."""
        return all(reading.ready() for _, reading in self._waiting)

    def numbers(self) -> Numbers:
        """Only when :meth:`ready`."""
        if self._numbers is None:
            self._numbers = self._read()
        return self._numbers

    def troubled(self) -> bool | None:
        """Whether something but an input was not finite; None where that cannot be known without a wait.

        What a trainer feeds in is its own affair until it shows in what a module makes of it.
        """
        if not all(reading.here() for _, reading in self._waiting):
            return None
        inner = [entry.where != "input" for entry in self.entries]
        return bool((self.numbers().nonfinite[inner] > 0).any())

    def _read(self) -> Numbers:
        amax = np.array([_at_hand(entry.extremes.amax) for entry in self.entries], np.float64)
        finite = np.array([_at_hand(entry.extremes.finite) for entry in self.entries], np.int64)
        for places, reading in self._waiting:
            found = np.asarray(reading.numbers()).reshape(2, -1)
            amax[places], finite[places] = found[0], found[1].astype(np.int64)
        return Numbers(amax, np.array([entry.numel for entry in self.entries], np.int64) - finite)


def _by_device(entries: Sequence[Entry]) -> list[list[int]]:
    """The places of entries that are on a device, for each device."""
    found: dict[torch.device, list[int]] = {}
    for place, entry in enumerate(entries):
        if isinstance(entry.extremes.finite, torch.Tensor):
            found.setdefault(entry.extremes.finite.device, []).append(place)
    return list(found.values())


def _stacked(found: Sequence[Extremes]) -> torch.Tensor:
    """float64 [2, n] on the device: amax and the count of finite values."""
    device = next(one.finite.device for one in found if isinstance(one.finite, torch.Tensor))
    return torch.stack([torch.stack([_held(one[column], device) for one in found]).double() for column in (0, 1)])


def _held(number: float | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Filled where it is to be: for a copy of it the host would wait for all that the device has yet to do."""
    return number if isinstance(number, torch.Tensor) else torch.full((), number, dtype=torch.float32, device=device)


def _at_hand(number: float | torch.Tensor) -> float:
    return 0.0 if isinstance(number, torch.Tensor) else number
