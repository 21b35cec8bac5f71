"""The CPU in the place of a CUDA device: numbers are taken for away, and arrive when a test says so.

The kernel that counts is one of numpy's here, which finds the gradients by their addresses in the table, as a device
does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from scalescope.numerics.elsewhere import CompileError
from scalescope.numerics.guarded import GuardedCount
from scalescope.numerics.launches import Launches
from scalescope.numerics.paths import Faster
from scalescope.numerics.ring import Line, Ring, Row
from scalescope.numerics.tables import KINDS, Table
from scalescope.readback import Gathering
from scalescope.taps.scaler.device import DeviceSide, Reach

from tests.small_training import Watched


class Arriving:
    """The event of copies, all of which have arrived or none."""

    def __init__(self) -> None:
        self.arrived = True

    def query(self) -> bool:
        return self.arrived


class HostLaunches(Launches):
    """Counts, and how often it was asked to."""

    def __init__(self, device: torch.device) -> None:
        self.calls = 0

    def count_if(self, found_inf: torch.Tensor, words: torch.Tensor, table: Table, out: torch.Tensor) -> None:
        self.calls += 1
        if not float(found_inf) > 0:
            return
        out[0] = 1
        rows = words[: 3 * table.rows].reshape(3, -1).T.tolist()
        for row, (address, length, kind) in enumerate(rows):
            out[1 + row] += _nonfinite(address, length, KINDS[kind])


def _nonfinite(address: int, length: int, dtype: torch.dtype) -> int:
    if not length:
        return 0
    values = torch.from_numpy(np.frombuffer(ctypes.string_at(address, length * dtype.itemsize), np.uint8).copy())
    values = values.view(dtype)
    return int((~values.isfinite()).sum())


def _refused() -> Launches:
    raise CompileError("not installed")


class StandIn:
    """What the hook can have of a device: see :class:`~scalescope.taps.scaler.device.Reach`."""

    def __init__(self, *, kernel: bool = True, lines: int = 128) -> None:
        self.event = Arriving()
        self._lines = lines
        self.rings: list[EventfulRing] = []
        self.launches = HostLaunches(torch.device("cpu"))
        # Stands still: nothing takes any time.
        self.now_ns = 0
        self.faster = Faster[Launches]("triton", lambda: self.launches if kernel else _refused())
        self.faster.ask()
        assert self.faster.settled.wait(60)

    def reach(self) -> Reach:
        return Reach(
            lambda _: True,
            Gathering(self._ring_of),
            lambda device: GuardedCount(device, self.faster),
            lambda: self.now_ns,
        )

    def put_under(self, watched: Watched) -> DeviceSide:
        """Let what ``watched`` hears lie on this device. Before the first update."""
        tap = watched.tap._scaler_tap
        tap.device = DeviceSide(tap.loop, watched.tap._loop._parameters, self.reach())
        return tap.device

    def _ring_of(self, device: torch.device) -> Ring:
        ring = EventfulRing(device, self.event, lines=self._lines)
        self.rings.append(ring)
        return ring


class EventfulRing(Ring):
    """Whose lines arrive when their event says so."""

    def __init__(self, device: torch.device, event: Arriving, *, lines: int) -> None:
        super().__init__(device, lines=lines)
        self._event = event
        self.gathered = 0

    def gather(self, numbers: Sequence[torch.Tensor]) -> Row | None:
        self.gathered += 1
        return super().gather(numbers)

    def _made(self, place: int) -> Line:
        line = super()._made(place)
        line.event = self._event
        return line
